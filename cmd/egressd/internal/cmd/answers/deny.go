package answers

import (
	"github.com/spf13/cobra"
)

func newDeny() *cobra.Command {
	o := options{verdict: "deny"}
	cmd := &cobra.Command{
		Use:   "deny HOST[:PORT]…",
		Short: "Keep sandboxes from one more host",
		Long: `Deny keeps sandboxes from hosts, and cuts what is open to them: for a while, or
with --save for good.

For a while, egressd serve is asked at listen.admin. It answers once the policy
is in force and all is cut. Nothing in the file is more specific than what is
denied so, and its tests do not hold it up. It ends with its time, with egressd
grants revoke, and with egressd serve.

With --save, each is written into the list deny of the file, which needs no
daemon. There the most specific line decides: what a longer one still allows is
said. The tests in the file have to stay green.

HOST means ports 80 and 443, HOST:PORT one port, HOST:* all of them, *.HOST
every host below it, '*:*' everything.`,
		Example: `  egressd deny pastebin.com:*
  egressd deny '*.example.com' --for 20m --sandbox ci
  egressd deny pastebin.com --save`,
	}
	o.addFlags(cmd, "deny")
	return cmd
}
