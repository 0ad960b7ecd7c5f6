package start

import (
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/integrations/github"
	"github.com/spf13/cobra"
)

func newInitGitHubCommand(o *planOptions) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "github",
		Short: "Write a GitHub Actions workflow that runs a script behind egressd",
		Long: `Init github writes a workflow that runs a script with egressd's action and adds a
summary of its traffic to the job. It replaces an existing file only with --yes.`,
		Example: "  egressd init github",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.carryOut(cmd.OutOrStdout(), cmd.ErrOrStderr(), github.Files(path))
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", ".github/workflows/egressd.yml", "`FILE` to write")
	return cmd
}
