package start

import (
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon"
	"github.com/spf13/cobra"
)

// drainFor is how long tunnels may go on after the signal to stop.
const drainFor = 10 * time.Second

func newServe() *cobra.Command {
	var path string
	var drain time.Duration
	var accept bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the proxy that decides and records",
		Long: `Serve listens for HTTP, CONNECT and SOCKS5 on the listeners of the policy file,
for names on those of listen.dns and for captured connections on those of
listen.transparent, and runs until SIGTERM or SIGINT. It reads the file, the
organisation's /etc/egressd/organisation.yaml where that exists, and the Rego
that they name, again when they change and on SIGHUP; a file that is not right
changes nothing, and both the log and standard error say so. Projects of
sandboxes are looked at every two seconds. Bundles that it fetches are looked
for again as the file says, and on SIGHUP. Listeners, limits and the log's
folder are read at the start only.

At listen.admin an operator can ask how it is, and allow and deny hosts for a
while: see egressd status, ps, cut, reload, allow, deny and grants.

A listener that the service manager has opened (LISTEN_FDS) is taken from it, by
its address; NOTIFY_SOCKET and WATCHDOG_USEC are served. egressd init systemd
writes units for that.`,
		Example: "  egressd serve --config ./egressd.yaml",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return daemon.Serve(cmd.Context(), cmd.ErrOrStderr(), path, drain, daemon.Tailoring{AcceptDamage: accept})
		},
	}
	cli.ConfigFlag(cmd, &path)
	cmd.Flags().DurationVar(&drain, "drain", drainFor, "how long open tunnels may go on after the signal to stop")
	cmd.Flags().BoolVar(&accept, "accept-damage", false, "where the audit log does not hold together, set it aside and begin a new one, which says so")
	return cmd
}
