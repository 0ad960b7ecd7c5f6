//go:build linux

package other

import (
	"fmt"
	"io"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/doctor"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/sandbox/jail"
	"github.com/spf13/cobra"
)

func newSelftest() *cobra.Command {
	var asJSON, redirect bool
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Try the known escapes from a sandbox and report any that work",
		Long: `Selftest makes the sandbox of egressd run and tries the known escapes from inside, as
restricted as a program would be. It also checks that connections and datagrams
arrive at egressd. Nothing leaves the machine. Egressd run repeats most of these
checks before each program, and refuses to start it if one escape works.

Exit codes: 0 no escape worked; 1 one did; 2 no sandbox could be made.`,
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
	cli.JSONFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&redirect, "redirect", false, "capture connections with NAT even if the kernel has tproxy")
	return cmd
}

// sayAttempts prints what was tried, and returns 1 as a status where one got out.
func sayAttempts(w io.Writer, tried []jail.WayOut, asJSON bool) error {
	var out int
	for _, a := range tried {
		if a.Escaped != "" {
			out++
		}
		if asJSON {
			if err := cli.PrintJSON(w, struct {
				jail.WayOut
				OK bool `json:"ok"`
			}{a, a.Escaped == ""}); err != nil {
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
