// Package clitest runs commands for tests.
package clitest

import (
	"io"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/spf13/cobra"
)

// Run runs a command line, of which the first word names command, as egressd does, and
// returns the exit code.
func Run(command *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{Use: "egressd", SilenceErrors: true, SilenceUsage: true}
	root.SetFlagErrorFunc(cli.FlagError)
	root.AddCommand(command)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return cli.Report(stderr, root.Execute())
}
