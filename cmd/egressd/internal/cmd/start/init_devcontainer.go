package start

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/compose"
	"github.com/egressd/egressd/integrations/devcontainer"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/environ"
	"github.com/spf13/cobra"
)

func newInitDevContainerCommand(flags *planOptions) *cobra.Command {
	o := devContainerOptions{integrationOptions: integrationOptions{planOptions: flags, of: integration{name: "devcontainer"}}}
	cmd := &cobra.Command{
		Use:   "devcontainer",
		Short: "Put a dev container behind egressd",
		Long: `Init devcontainer changes .devcontainer/devcontainer.json so that egressd serve is
the container's only network. It adds arguments of docker run, a mount of
egressd's socket, and a Feature that attaches the network at every start. The
settings are mounted read-only, so a program in the container cannot change them.

Programs find egressd by proxy variables. With --transparent all their traffic is
captured; the container then gets CAP_NET_ADMIN over its own network.

Settings that would bypass egressd are errors, and so are settings that egressd does
not know. It reads local Features, and the metadata of images that the engine has;
other Features and images are errors, unless you name them with --trust.

It shows the change first, and writes it with --yes or when you confirm on a
terminal. Everything else in the file stays, comments too.`,
		Example: `  egressd init devcontainer
  egressd init devcontainer --transparent --name web --yes`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.ConfigFlag(cmd, &o.config)
	cmd.Flags().StringVar(&o.sandbox, "name", "", "`NAME` of the sandbox (default: the name of the folder)")
	cmd.Flags().StringVar(&o.workspace, "workspace", ".", "`FOLDER` that holds .devcontainer")
	cmd.Flags().BoolVar(&o.transparent, "transparent", false, "capture all traffic; the container gets CAP_NET_ADMIN")
	cmd.Flags().BoolVar(&o.copy, "copy", false, "copy egressd into the Feature instead of mounting it")
	cmd.Flags().StringSliceVar(&o.trust, "trust", nil, "`NAME` of a Feature, an image or a Dockerfile that you have read")
	return cmd
}

type devContainerOptions struct {
	integrationOptions
	sandbox, workspace string
	transparent, copy  bool
	trust              []string
}

func (o *devContainerOptions) run(stdin io.Reader, stdout, stderr io.Writer) error {
	c, err := config.Load(o.config)
	if err != nil {
		return err
	}
	settings, missing, err := o.settings(c)
	if err != nil {
		return err
	}
	plan, err := devcontainer.Merge(settings)
	if err != nil {
		return o.refused(err)
	}
	changed, err := o.show(stdout, plan)
	if err != nil {
		return err
	}
	wrote := false
	if changed && !o.print {
		if err := o.agreed(stdin, stderr); err != nil {
			return err
		}
		if err := o.write(plan); err != nil {
			return hint.Failed(err, o.command()+", once more")
		}
		wrote = true
	}
	if o.print && !o.json {
		return nil
	}
	return o.done(stdout, stderr, c, plan, wrote, missing)
}

func (o *devContainerOptions) refused(err error) error {
	if boundary, ok := errors.AsType[*devcontainer.BoundaryError](err); ok {
		return hint.Failed(err, boundary.Instead)
	}
	return o.integrationOptions.refused(err)
}

// settings is what the container is to be told. missing is what the policy lacks for
// it, as text of YAML.
func (o *devContainerOptions) settings(c *config.Config) (d devcontainer.Options, missing string, err error) {
	if d.Folder, err = filepath.Abs(o.workspace); err != nil {
		return d, "", err
	}
	if o.sandbox == "" {
		o.sandbox = strings.ToLower(filepath.Base(d.Folder))
	}
	if !sandbox.PlainName(o.sandbox) {
		return d, "", hint.Misused(fmt.Errorf("--name %s: a name has up to 64 letters, digits, dots, dashes and underscores", printable.Text(o.sandbox)), o.command()+" --name web")
	}
	socket, missing := attachSocket(c, o.sandbox)
	d.SocketFolder, d.Socket = filepath.Dir(socket), filepath.Base(socket)
	if d.Program, err = os.Executable(); err != nil {
		return d, "", hint.Failed(err, o.command()+" --copy")
	}
	for _, p := range []string{socket, d.Program} {
		if !filepath.IsAbs(p) || shell.Word(p) != p {
			return d, "", hint.Failed(fmt.Errorf("%s cannot stand in a mount as it is", printable.Text(p)), "a plain path, such as /run/egressd/"+o.sandbox+"/enter.sock or /usr/local/bin/egressd")
		}
	}
	if o.copy {
		d.Program = ""
	}
	d.Captured, d.Environ, d.Trust = o.transparent, os.Environ(), o.trust
	d.Machine, d.ImageLabels, d.Volume = hostpaths.ProjectMachine(d.Folder, "", c), imageLabels, compose.ProjectName{}.Volume // of no project of Compose
	compose.AskEngine(d.Machine)
	d.Variables, err = o.variables(c)
	return d, missing, err
}

// imageLabels asks docker for the labels of an image. One that gives further labels to what is built of it counts as
// unread.
func imageLabels(image string) (labels map[string]string, found bool) {
	out, err := exec.Command("docker", "image", "inspect", "--format", "{{json .Config}}", "--", image).Output()
	var is struct {
		Labels  map[string]string
		OnBuild []string
	}
	if err != nil || json.Unmarshal(out, &is) != nil {
		return nil, false
	}
	return is.Labels, !slices.ContainsFunc(is.OnBuild, func(step string) bool {
		f := strings.Fields(step)
		return len(f) > 0 && strings.EqualFold(f[0], "LABEL")
	})
}

// attachSocket returns the enter socket of a sandbox in the policy. If the policy has none, it returns a path for the
// socket, and in missing the YAML to add to the policy.
func attachSocket(c *config.Config, name string) (socket, missing string) {
	for _, s := range c.File.Sandboxes {
		if s.Name == name && s.Enter != "" {
			return filepath.Clean(strings.TrimPrefix(s.Enter, file.UnixListener)), ""
		}
	}
	dir := "/run/egressd"
	if own := os.Getenv("XDG_RUNTIME_DIR"); os.Getuid() != 0 && own != "" {
		dir = filepath.Join(own, "egressd")
	}
	socket = filepath.Join(dir, name, "enter.sock")
	return socket, fmt.Sprintf(`- {name: %s, enter: "unix:%s"}`, name, socket)
}

// variables are those of every process of the container: those that start later have
// nothing of what the first one was told.
func (o *devContainerOptions) variables(c *config.Config) (all []integrations.Variable, err error) {
	var vars []environ.Variable
	if !o.transparent {
		if vars, _, err = environ.ForProxy(fmt.Sprintf("127.0.0.1:%d", attach.ProxyPort), nil); err != nil {
			return nil, err
		}
	}
	if _, err := c.Compile(); err != nil {
		return nil, hint.Misused(err, "egressd policy check --config "+shell.Word(c.Path))
	}
	if c.Inspects() {
		vars = append(vars, environ.ForTrust(devcontainer.TrustBundle)...)
	}
	for _, v := range vars {
		all = append(all, integrations.Variable{Name: v.Name, Value: v.Value})
	}
	return all, nil
}

// show prints what is to change, and says whether anything is.
func (o *devContainerOptions) show(stdout io.Writer, plan *integrations.Plan) (changed bool, err error) {
	if o.print && !o.json {
		_, err := stdout.Write(plan.File.New)
		return false, err
	}
	var text strings.Builder
	if _, err := readBeside(plan.File.Path); err != nil {
		return false, hint.Failed(err, o.command()+" --workspace FOLDER, one of yours")
	}
	if !plan.File.Same() {
		text.WriteString(o.difference(&plan.File))
	}
	for _, f := range plan.Beside {
		old, err := readBeside(f.Path)
		if err != nil {
			return false, hint.Failed(err, o.command()+" --workspace FOLDER, one of yours")
		}
		if old == nil || string(old) != f.Text {
			text.WriteString(o.difference(&integrations.File{Path: f.Path, Old: old, New: []byte(f.Text)}))
		}
	}
	changed = text.Len() > 0
	if o.copy {
		same, err := sameProgram(o.copied())
		if err != nil {
			return false, hint.Failed(err, o.command())
		}
		if !same {
			fmt.Fprintf(&text, "Binary file %s is to be a copy of this egressd\n", printable.Text(o.copied()))
			changed = true
		}
	}
	if !o.json {
		_, err = io.WriteString(stdout, text.String())
	}
	return changed, err
}

func (o *devContainerOptions) copied() string {
	folder, err := filepath.Abs(o.workspace)
	if err != nil {
		folder = o.workspace
	}
	return devcontainer.FeatureProgram(folder)
}

// write writes the settings last, so that they never name what is not there.
func (o *devContainerOptions) write(plan *integrations.Plan) error {
	for _, f := range plan.Beside {
		if err := writePlanned(f); err != nil {
			return err
		}
	}
	if o.copy {
		if err := copyProgram(o.copied()); err != nil {
			return err
		}
	}
	if plan.File.Same() {
		return nil
	}
	return replaceSettings(&plan.File)
}

// A devContained is what init devcontainer tells a script.
type devContained struct {
	integrated
	Sandbox string   `json:"sandbox"`
	Beside  []string `json:"beside"`
	Policy  string   `json:"policy,omitempty"` // what it lacks
}

func (o *devContainerOptions) done(stdout, stderr io.Writer, c *config.Config, plan *integrations.Plan, wrote bool, missing string) error {
	if o.json {
		said := devContained{integrated: integrated{plan.File.Path, wrote, string(plan.File.New), plan.Notes}, Sandbox: o.sandbox, Policy: missing}
		for _, f := range plan.Beside {
			said.Beside = append(said.Beside, f.Path)
		}
		return cli.PrintJSON(stdout, said)
	}
	if wrote {
		fmt.Fprintf(stderr, "egressd: wrote %s and the Feature beside it\n", printable.Text(plan.File.Path))
	} else {
		fmt.Fprintf(stderr, "egressd: %s says so already\n", printable.Text(plan.File.Path))
	}
	for _, note := range plan.Notes {
		fmt.Fprintf(stderr, "egressd: %s\n", note)
	}
	if missing != "" {
		hint.Sayf(stderr, "in %s, under sandboxes: %s", c.Path, missing)
		hint.Sayf(stderr, "add uid: [1000] to it if the container's user is not root, with the number of that user")
	}
	hint.Sayf(stderr, "egressd serve, then devcontainer up --workspace-folder %s", shell.Word(o.workspace))
	return nil
}

// readBeside returns nil where there is no file. A link is refused: whoever works in the
// project could have made it.
func readBeside(path string) ([]byte, error) {
	for _, p := range []string{filepath.Dir(filepath.Dir(path)), filepath.Dir(path), path} {
		if isLink(p) {
			return nil, fmt.Errorf("%s is a link, and in a project none is followed", p)
		}
	}
	text, err := durable.Plain(path, maxBeside)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// maxBeside is more than this program has, in bytes, which a Feature may hold.
const maxBeside = 256 << 20

func sameProgram(at string) (bool, error) {
	old, err := readBeside(at)
	if err != nil || old == nil {
		return false, err
	}
	own, err := thisProgram()
	return err == nil && string(old) == string(own), err
}

func copyProgram(to string) error {
	own, err := thisProgram()
	if err != nil {
		return err
	}
	return durable.Replace(to, own, 0o755)
}

func thisProgram() ([]byte, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}
