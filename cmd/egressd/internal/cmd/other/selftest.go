package other

import (
	"fmt"
	"io"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/sandbox"
	"github.com/spf13/cobra"
)

// newSelftest returns egressd selftest.
func newSelftest() *cobra.Command {
	var asJSON, redirect bool
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Try to get out of a sandbox of this machine",
		Long: `Selftest makes the sandbox that egressd run makes, and tries the ways out of it
that are known, from inside and as restricted as a program would be; and it looks
that connections and datagrams to anywhere arrive at egressd. Nothing leaves the
machine. Run does the same before each program but for the packets, and refuses
to start it where one of them succeeds.

It exits with 0 where nothing got out, with 1 where something did, and with 2
where no sandbox could be made.`,
		Example: `  egressd selftest
  egressd selftest --json`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tried, _, err := doctor.Selftest(redirect)
			if err != nil {
				return hint.Unsure(err)
			}
			return sayAttempts(cmd.OutOrStdout(), tried, asJSON)
		},
	}
	cli.JsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&redirect, "redirect", false, "capture connections by NAT also where the kernel has tproxy")
	return cmd
}

// sayAttempts prints what was tried, and returns 1 as a status where one got out.
func sayAttempts(w io.Writer, tried []sandbox.Attempt, asJSON bool) error {
	var out int
	for _, a := range tried {
		if a.Escaped != "" {
			out++
		}
		if asJSON {
			if err := cli.PrintJSON(w, a); err != nil {
				return err
			}
			continue
		}
		if a.Escaped != "" {
			fmt.Fprintf(w, "✗ %s: %s\n", a.Name, printable.Text(a.Escaped))
			continue
		}
		fmt.Fprintf(w, "✓ %s\n", a.Name)
	}
	if !asJSON {
		fmt.Fprintf(w, "self-test %d/%d\n", len(tried)-out, len(tried))
	}
	if out > 0 {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}
