package start

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/config/edit"
	"github.com/egressd/egressd/internal/durable"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/spf13/cobra"
)

func newInit() *cobra.Command {
	o := initOptions{planOptions: &planOptions{}}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a starter policy, or set up Docker, Claude Code, systemd and others",
		Long: `Init writes a commented starter policy for an agent that works in a repository. It
allows model APIs and the common package registries, and nothing else.

It shows what it writes, and replaces an existing file only with --yes. The
subcommands set up other programs; each shows its changes first.`,
		Example: `  egressd init
  egressd init --print > egressd.yaml
  egressd init claude`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	cmd.Flags().StringVar(&o.config, "config", "", "`FILE` to write (default: $XDG_CONFIG_HOME/egressd/egressd.yaml, or ~/.config/egressd/egressd.yaml)")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "write without asking, also over a file that is there")
	cmd.Flags().BoolVar(&o.print, "print", false, "print what would be written, write nothing")
	cli.JSONFlag(cmd, &o.json)
	cli.Inherit(cmd, "yes", "print", "json")
	for _, i := range programs {
		cmd.AddCommand(newIntegrationCommand(i, o.planOptions))
	}
	for _, newTarget := range []func(*planOptions) *cobra.Command{
		newInitSystemdCommand, newInitK8sCommand, newInitGitHubCommand, newInitComposeCommand, newInitDockerCommand,
		newInitDevContainerCommand, newInitBubblewrapCommand, newInitRegoCommand,
	} {
		cmd.AddCommand(newTarget(o.planOptions))
	}
	return cmd
}

type initOptions struct {
	*planOptions
	config string
}

func (o *initOptions) run(stdout, stderr io.Writer) error {
	text := config.Starter()
	if o.print {
		return o.printText(stdout, text)
	}
	path, err := o.path()
	if err != nil {
		return err
	}
	old, err := config.Read(path)
	exists := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hint.Failed(err, "egressd init --config FILE")
	}
	if bytes.Equal(old, text) && exists {
		fmt.Fprintf(stderr, "egressd: %s is the starter policy already\n", path)
		return o.wrote(stdout, stderr, path, false)
	}
	if err := o.previewText(stdout, path, string(old), string(text), exists); err != nil {
		return err
	}
	if exists && !o.yes {
		return hint.Failed(fmt.Errorf("%s exists, and was left as it is", path), "egressd init --yes, to replace it as shown")
	}
	if err := writePolicy(path, text); err != nil {
		return hint.Failed(err, "egressd init --config FILE, where FILE can be written")
	}
	return o.wrote(stdout, stderr, path, true)
}

func (o *initOptions) printText(stdout io.Writer, text []byte) error {
	if o.json {
		return cli.PrintJSON(stdout, cli.Written{Policy: string(text)})
	}
	_, err := stdout.Write(text)
	return err
}

// path is where the policy goes: the first place of the user's, else of the
// system's.
func (o *initOptions) path() (string, error) {
	if o.config != "" {
		return filepath.Abs(o.config)
	}
	return config.SearchPath()[0], nil
}

// preview prints what is about to be written.
func (o *initOptions) previewText(w io.Writer, path, old, text string, exists bool) error {
	if o.json {
		return nil
	}
	name := path
	if !exists {
		name = "/dev/null"
	}
	_, err := io.WriteString(w, edit.UnifiedDiff(name, path, old, text))
	return err
}

// writePolicy replaces path in one step, readable by its owner alone, so that
// a daemon that watches it never reads half a policy.
func writePolicy(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.Replace(path, text, 0o600)
}

func (o *initOptions) wrote(stdout, stderr io.Writer, path string, wrote bool) error {
	if o.json {
		return cli.PrintJSON(stdout, cli.Written{Path: path, Written: wrote})
	}
	config := ""
	if o.config != "" {
		config = " --config " + shell.Word(path)
	}
	if wrote {
		fmt.Fprintf(stderr, "egressd: wrote %s\n", printable.Text(path))
	}
	if err := sayOverruled(stderr, path); err != nil {
		return err
	}
	hint.Sayf(stderr, "run a program behind it: egressd run%s -- npm test", config)
	hint.Sayf(stderr, "for containers and many sandboxes: egressd serve%s", config)
	return nil
}

// sayOverruled says what of the policy at path the organisation's file keeps shut. The error is that egressd does not accept
// the policy on this machine.
func sayOverruled(stderr io.Writer, path string) error {
	c, err := config.Load(path)
	if err != nil {
		return err
	}
	p, err := c.Compile()
	if err != nil {
		return err
	}
	for _, w := range c.Overruled(p) {
		fmt.Fprintf(stderr, "egressd: warning: %s\n", printable.Text(w.String()))
	}
	return nil
}
