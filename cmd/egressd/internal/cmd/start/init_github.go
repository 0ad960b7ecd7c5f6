package start

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/integrations/github"
	"github.com/spf13/cobra"
)

func newInitGitHubCommand() *cobra.Command {
	var o planOptions
	var path string
	cmd := &cobra.Command{
		Use:   "github",
		Short: "Write a workflow of GitHub Actions whose untrusted part egressd holds",
		Long: `Init github writes a workflow that runs a script with egressd's action, and leaves
what the script tried to reach in the summary of the job. It prints what it
writes, as a difference, and replaces nothing without --force.`,
		Example: "  egressd init github",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), github.Files(path))
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", ".github/workflows/egressd.yml", "`FILE` to write")
	o.flags(cmd)
	return cmd
}
