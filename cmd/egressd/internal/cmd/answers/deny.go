package answers

import (
	"github.com/spf13/cobra"
)

func newDeny() *cobra.Command {
	o := options{verdict: "deny"}
	cmd := &cobra.Command{
		Use:   "deny HOST[:PORT]…|--list|--undo ID",
		Short: "Deny a host, for a while or for good",
		Long: `Deny adds a rule that denies HOST, and cuts its open connections: for a while, or
with --save for good.

A temporary rule goes to the running egressd serve, and comes
before every line of the file. It ends after --for, with --undo, or when egressd serve
stops. --list shows the temporary rules of allow and deny.

With --save, deny adds a line to the policy file; it needs no daemon. Then HOST is
denied, whatever else the file says. A plain line that only allowed HOST is taken
out. If another line still allows some of HOST, deny names it and writes nothing.
The tests in the file must pass.

HOST is every port, HOST:PORT one port, *.HOST every host below it, '*'
everything.`,
		Example: `  egressd deny pastebin.com
  egressd deny '*.example.com' --for 20m --sandbox ci
  egressd deny pastebin.com --save`,
	}
	o.addFlags(cmd, "deny")
	return cmd
}
