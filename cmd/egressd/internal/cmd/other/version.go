package other

import (
	"fmt"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/version"
	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), version.This())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.This())
			return err
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}
