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
		Short: "Run the proxy and name server for many sandboxes",
		Long: `Serve listens for HTTP, CONNECT and SOCKS5 (listen.proxy), for DNS (listen.dns)
and for captured connections (listen.transparent) until SIGTERM or SIGINT.

It reads the policy file, /etc/egressd/organisation.yaml and their Rego again
when they change, and on SIGHUP. If the new policy is wrong or one of its tests
fails, the old one stays in force; standard error and the log say why. Listeners,
limits and the folder of the log are read only at the start.

These commands talk to it through a socket of its user: status, cut, reload, allow,
deny, answer and ui. listen.admin moves the socket.

Serve works with systemd: it takes sockets from LISTEN_FDS and reports to
NOTIFY_SOCKET. egressd init systemd writes the units.`,
		Example: "  egressd serve --config ./egressd.yaml",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return daemon.Serve(cmd.Context(), cmd.ErrOrStderr(), path, drain, daemon.Tailoring{AcceptDamage: accept})
		},
	}
	cli.ConfigFlag(cmd, &path)
	cmd.Flags().DurationVar(&drain, "drain", drainFor, "time that open tunnels get to finish after a stop signal")
	cmd.Flags().BoolVar(&accept, "accept-damage", false, "if the audit log is damaged, set it aside and begin a new one that says so")
	return cmd
}
