package start

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/claude"
	"github.com/egressd/egressd/integrations/codex"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/spf13/cobra"
)

// An integration is one kind of settings that init can write.
type integration struct {
	name, short, long string
	// path is the file, for the working directory's project where that is asked for.
	path func(project bool) (string, error)
	// projects says that a project can have settings of its own.
	projects bool
	plan     func(path, address string) (*integrations.Plan, error)
}

// programs are those whose settings init can change.
var programs = []integration{
	{
		name: "claude", short: "Send the commands of Claude Code's sandbox through egressd", projects: true,
		long: `Init claude sets sandbox.enabled, sandbox.network.httpProxyPort and
sandbox.network.socksProxyPort in Claude Code's settings.json: the user's
($CLAUDE_CONFIG_DIR or ~/.claude) or, with --project, the one in the working
directory. They apply to the commands that Claude Code runs in its sandbox.
To put all of Claude Code behind egressd, use: egressd run -- claude`,
		path: claudePath, plan: planClaude,
	},
	{
		name: "codex", short: "Send the commands of Codex through egressd",
		long: `Init codex makes Codex start its commands with the variables of egressd env:
[shell_environment_policy.set] in config.toml ($CODEX_HOME or ~/.codex). Codex
gives its commands no network, and this does not change that.
To put all of Codex behind egressd, use: egressd run --fs -- codex`,
		path: codexPath, plan: planCodex,
	},
}

func newIntegrationCommand(i integration, flags *planOptions) *cobra.Command {
	o := integrationOptions{planOptions: flags, of: i}
	cmd := &cobra.Command{
		Use:   i.name,
		Short: i.short,
		Long: i.long + `

It shows the change first, and writes it with --yes or when you confirm on a
terminal. Everything else in the file stays. A setting that already has another
value is an error.`,
		Example: "  egressd init " + i.name + "\n  egressd init " + i.name + " --listen 127.0.0.1:3130 --yes",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cmd.Flags().StringVar(&o.listen, "listen", "", "`ADDR` of the proxy, on loopback (default: the first proxy listener of the policy)")
	if i.projects {
		cmd.Flags().BoolVar(&o.project, "project", false, "change the settings in the working directory instead of the user's")
	}
	return cmd
}

type integrationOptions struct {
	*planOptions
	of             integration
	config, listen string
	project        bool
}

func (o *integrationOptions) command() string { return "egressd init " + o.of.name }

func (o *integrationOptions) run(stdin io.Reader, stdout, stderr io.Writer) error {
	address, err := o.address()
	if err != nil {
		return err
	}
	path, err := o.of.path(o.project)
	if err != nil {
		return hint.Failed(err, o.command()+", in a folder of yours")
	}
	plan, err := o.of.plan(path, address)
	if err != nil {
		return o.refused(err)
	}
	file := &plan.File
	if o.print && !o.json {
		_, err := stdout.Write(file.New)
		return err
	}
	if !o.json && !file.Same() {
		if _, err := io.WriteString(stdout, o.difference(file)); err != nil {
			return err
		}
	}
	wrote := false
	if !file.Same() && !o.print {
		if err := o.agreed(stdin, stderr); err != nil {
			return err
		}
		if err := replaceSettings(file); err != nil {
			return hint.Failed(err, o.command()+", once more")
		}
		wrote = true
	}
	return o.done(stdout, stderr, plan, wrote)
}

// address is where the proxy is, as HOST:PORT on loopback: what the other program can
// be told.
func (o *integrationOptions) address() (string, error) {
	next := o.command() + " --listen 127.0.0.1:3128"
	address, user, err := config.ProxyAt(o.config, o.listen, "")
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(address, file.UnixListener) || strings.HasPrefix(address, file.TLSListener) || user != nil {
		return "", hint.Failed(fmt.Errorf("%s: it has to be a TCP address without TLS and without a token", printable.Text(address)), next)
	}
	host, port, err := environ.SplitListen(address)
	if err != nil {
		return "", err
	}
	if !environ.ReachesOnlyHere(host) {
		return "", hint.Failed(fmt.Errorf("%s is not on loopback", address), next)
	}
	return net.JoinHostPort(host, port), nil
}

func (o *integrationOptions) refused(err error) error {
	var conflict *integrations.ConflictError
	var shape *integrations.ShapeError
	switch {
	case errors.As(err, &conflict):
		return hint.Failed(err, "change or remove it there if that is what you want, then "+o.command())
	case errors.As(err, &shape) && shape.ByHand != "":
		return hint.Failed(err, "write it by hand: "+strings.ReplaceAll(strings.TrimSpace(shape.ByHand), "\n", "; "))
	default:
		return hint.Failed(err, o.command()+" --print")
	}
}

func (o *integrationOptions) difference(file *integrations.File) string {
	name := file.Path
	if file.Old == nil {
		name = os.DevNull
	}
	return edit.UnifiedDiff(name, file.Path, string(file.Old), string(file.New))
}

// agreed asks, where somebody is there to answer.
func (o *integrationOptions) agreed(stdin io.Reader, stderr io.Writer) error {
	left := hint.Failed(errors.New("nothing was written"), "the same with --yes, to write it as shown")
	switch {
	case o.yes:
		return nil
	case o.json || !cli.IsTerminal(stdin) || !cli.IsTerminal(stderr):
		return left
	}
	fmt.Fprint(stderr, "egressd: write this? [y/N] ")
	answer, _ := bufio.NewReader(io.LimitReader(stdin, 256)).ReadString('\n') // what cannot be read is no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return left
}

// replaceSettings replaces the file in one step and keeps its mode. It returns an error if the file has changed
// since the user saw the difference.
func replaceSettings(file *integrations.File) error {
	mode := fs.FileMode(0o600)
	now, err := durable.Plain(file.Path, maxThere)
	switch {
	case errors.Is(err, fs.ErrNotExist) && file.Old == nil:
	case err != nil:
		return err
	case file.Old == nil || !bytes.Equal(now, file.Old):
		return fmt.Errorf("%s has changed since it was read, and was left as it is", file.Path)
	default:
		info, err := os.Stat(file.Path)
		if err != nil {
			return err
		}
		mode = info.Mode().Perm()
	}
	if err := os.MkdirAll(filepath.Dir(file.Path), 0o700); err != nil {
		return err
	}
	return durable.Replace(file.Path, file.New, mode)
}

// integrated is what init of an integration tells a script.
type integrated struct {
	Path    string   `json:"path"`
	Written bool     `json:"written"`
	Text    string   `json:"text"`
	Notes   []string `json:"notes"`
}

func (o *integrationOptions) done(stdout, stderr io.Writer, plan *integrations.Plan, wrote bool) error {
	if o.json {
		return cli.PrintJSON(stdout, integrated{plan.File.Path, wrote, string(plan.File.New), plan.Notes})
	}
	if wrote {
		fmt.Fprintf(stderr, "egressd: wrote %s\n", printable.Text(plan.File.Path))
	} else {
		fmt.Fprintf(stderr, "egressd: %s says so already\n", printable.Text(plan.File.Path))
	}
	for _, note := range plan.Notes {
		fmt.Fprintf(stderr, "egressd: %s\n", note)
	}
	hint.Sayf(stderr, "egressd serve, before %s is started", o.of.name)
	return nil
}

// settingsPath is name in the folder that a variable names, else in a folder of the
// home directory. Where it is a link, it is what that leads to.
func settingsPath(variable, folder, name string) (string, error) {
	dir := os.Getenv(variable)
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(home, folder)
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	switch to, err := filepath.EvalSymlinks(path); {
	case err == nil:
		return to, nil
	case errors.Is(err, fs.ErrNotExist) && !isLink(path):
		return path, nil
	default:
		return "", fmt.Errorf("%s leads nowhere", path)
	}
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// claudePath follows no link in a project: whoever works in it made that.
func claudePath(project bool) (string, error) {
	const name = "settings.json"
	if !project {
		return settingsPath("CLAUDE_CONFIG_DIR", ".claude", name)
	}
	folder, err := filepath.Abs(".claude")
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, name)
	if isLink(folder) || isLink(path) {
		return "", fmt.Errorf("%s is a link, and in a project none is followed", path)
	}
	return path, nil
}

func codexPath(bool) (string, error) { return settingsPath("CODEX_HOME", ".codex", "config.toml") }

func planClaude(path, address string) (*integrations.Plan, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); ip != nil && ip.To4() == nil {
		return nil, fmt.Errorf("%s: Claude Code is told a port alone, and goes to localhost, which may be 127.0.0.1", address)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	return claude.Merge(path, uint16(number))
}

func planCodex(path, address string) (*integrations.Plan, error) {
	vars, _, err := environ.ForProxy(address, nil)
	if err != nil {
		return nil, err
	}
	variables := make([]integrations.Variable, len(vars))
	for i, v := range vars {
		variables[i] = integrations.Variable{Name: v.Name, Value: v.Value}
	}
	return codex.Merge(path, variables)
}
