package logcmd

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/shell"
)

func newLogKeyCommand() *cobra.Command {
	var o signedSource
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Print the public key that verifies the log",
		Long: `Key prints the first public key of the log; all later keys are derived from its
signatures. Keep it on another machine: log verify and log prove --check need it
there. With --run it is the key for all runs of your user.`,
		Example: "  egressd log key > log-key.txt",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := o.Directory()
			if err != nil {
				return err
			}
			if o.signedSourceIsRun() {
				if dir, err = o.RunsIndex(); err != nil {
					return err
				}
			}
			keys, err := o.keyDir(dir)
			if err != nil {
				return err
			}
			key, err := printedKey(dir, keys)
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{"key": key, "dir": dir})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), key)
			return err
		},
	}
	cli.OneLogFlags(cmd, &o.Source)
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

// printedKey is the first public key of the log in dir.
func printedKey(dir, keys string) (string, error) {
	key, err := audit.RootKey(dir, keys)
	if errors.Is(err, fs.ErrNotExist) {
		return "", hint.Failed(fmt.Errorf("there is no signed log in %s, or its key is not on this machine", dir), "egressd serve, which begins one")
	}
	return key, explainKey(err)
}

func newLogCheckpointCommand() *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Print the newest checkpoint of the log",
		Long: `Checkpoint verifies the log and prints its newest checkpoint: a signed note (C2SP
tlog-checkpoint) with the number of records and the hash of all of them. Keep it
elsewhere; it proves later that none of these records was changed or cut off.`,
		Example: "  egressd log checkpoint | ssh auditor 'cat >> checkpoints.txt'",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, dir, err := o.verify(nil)
			if err != nil {
				return err
			}
			if report.Code != verify.Good && report.Code != verify.TornTail {
				return hint.Failed(fmt.Errorf("the log is not good: %s", report.Problem), "egressd log verify "+shell.Word(dir))
			}
			if o.json {
				return cli.PrintJSON(cmd.OutOrStdout(), map[string]string{"checkpoint": report.Newest})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), report.Newest)
			return err
		},
	}
	cli.OneLogFlags(cmd, &o.Source)
	o.keyFlag(cmd)
	cli.JSONFlag(cmd, &o.json)
	return cmd
}
