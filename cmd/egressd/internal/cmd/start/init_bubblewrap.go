package start

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/integrations"
	"github.com/egressd/egressd/integrations/bubblewrap"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/sandbox"
	"github.com/spf13/cobra"
)

func newInitBubblewrapCommand(o *planOptions) *cobra.Command {
	var configFile, name, path string
	cmd := &cobra.Command{
		Use:   "bubblewrap",
		Short: "Write a bwrap wrapper whose network is egressd",
		Long: `Init bubblewrap writes a script that takes the arguments of bwrap. The script
creates an empty network, attaches it to egressd serve and starts bwrap in it.
All traffic is captured, and no root is needed.

Without a daemon, use egressd run --nested -- bwrap …, or egressd run --fs, which
needs no bwrap and also hides sockets of the machine's services.`,
		Example: `  egressd init bubblewrap --name web -o web-bwrap
  ./web-bwrap --ro-bind / / --tmpfs /run --dev /dev --proc /proc --unshare-all --share-net -- npm test`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			set, err := bubblewrapFor(configFile, name, path)
			if err != nil {
				return err
			}
			return o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), set)
		},
	}
	cli.ConfigFlag(cmd, &configFile)
	cmd.Flags().StringVar(&name, "name", "bwrap", "`NAME` of the sandbox")
	cmd.Flags().StringVarP(&path, "output", "o", "egressd-bwrap", "`FILE` to write")
	return cmd
}

func bubblewrapFor(configFile, name, path string) (set integrations.Set, err error) {
	c, err := config.Load(configFile)
	if err != nil {
		return set, err
	}
	if !sandbox.PlainName(name) {
		return set, hint.Misused(fmt.Errorf("--name %s: a name has up to 64 letters, digits, dots, dashes and underscores", printable.Text(name)), "egressd init bubblewrap --name web")
	}
	program, err := os.Executable()
	if err != nil {
		return set, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return set, err
	}
	socket, missing := attachSocket(c, name)
	set = bubblewrap.Files(path, name, shell.Word(program), shell.Word(socket))
	if missing != "" {
		set.Notes = append([]string{"in " + c.Path + ", under sandboxes: " + missing}, set.Notes...)
	}
	return set, nil
}
