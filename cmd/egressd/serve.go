package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/confine"
	"github.com/spf13/cobra"
)

// drainFor is how long tunnels may go on after the signal to stop.
const drainFor = 10 * time.Second

// sinksDrain is how long sinks may go on after the last record. What they do not
// get rid of by then is sent after the next start.
const sinksDrain = 3 * time.Second

// anchorsDrain is how long the last checkpoint may take to those who keep it.
const anchorsDrain = 2 * time.Second

func newServeCommand() *cobra.Command {
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

A listener that the service manager has opened (LISTEN_FDS) is taken from it, by
its address; NOTIFY_SOCKET and WATCHDOG_USEC are served. egressd init systemd
writes units for that.`,
		Example: "  egressd serve --config ./egressd.yaml",
		Args:    cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), cmd.ErrOrStderr(), path, drain, tailoring{acceptDamage: accept})
		},
	}
	cli.ConfigFlag(cmd, &path)
	cmd.Flags().DurationVar(&drain, "drain", drainFor, "how long open tunnels may go on after the signal to stop")
	cmd.Flags().BoolVar(&accept, "accept-damage", false, "where the audit log does not hold together, set it aside and begin a new one, which says so")
	return cmd
}

// collectAt makes the collector run at half the usual growth. Most of what a
// connection allocates is gone before it ends, and idle tunnels are what is
// left: this takes a third off the memory of each, for a CPU cost that the
// benchmark does not show.
const collectAt = 50

// serve runs the daemon until a signal ends it.
func serve(ctx context.Context, talk io.Writer, path string, drain time.Duration, t tailoring) (err error) {
	debug.SetGCPercent(collectAt)
	if err := confine.Process(talk); err != nil {
		return err
	}
	if err := confine.Daemon(talk); err != nil {
		return err
	}
	confine.WarnRoot(talk)
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if t.handed, err = takeHanded(); err != nil {
		return err
	}
	d, err := newDaemon(talk, path, t)
	if err != nil {
		return err
	}
	defer d.close()
	confine.WarnFiles(talk, d.config.File.Limits.Connections)
	hangup := make(chan os.Signal, 1) // before anybody is told that the daemon is there
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	if err := d.start(ctx); err != nil {
		return err
	}
	d.follow(ctx, hangup)
	return d.stop(drain)
}

// follow reloads on SIGHUP and on changes of the file and of what is fetched, until
// ctx is done.
func (d *daemon) follow(ctx context.Context, hangup <-chan os.Signal) {
	changes := d.changes(ctx)
	trees := time.NewTicker(d.trees)
	defer trees.Stop()
	alive, rest := d.watchdog()
	defer rest()
	for {
		d.age(ctx)
		d.poll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			d.telling(func() { d.reload(ctx, "SIGHUP", true) })
			d.pollNow()
		case <-changes:
			d.reload(ctx, "the file changed", false)
		case a := <-d.arrivals:
			d.arrive(ctx, a)
		case <-d.ageing():
		case <-alive:
			d.notify(sd.SdNotifyWatchdog)
		case <-trees.C:
			if d.config.ProjectsMoved() {
				d.reload(ctx, "a project changed", false)
			}
		}
	}
}

// stop ends the daemon: first its listeners, then, when they had their time,
// its tunnels, and last the log.
func (d *daemon) stop(drain time.Duration) error {
	d.notify(sd.SdNotifyStopping)
	fmt.Fprintf(d.talk, "egressd: stopping; open tunnels have %s\n", drain)
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	note := "stopped"
	left := d.endStays(ctx)
	if err := d.server.Shutdown(ctx); err != nil {
		note = "stopped: " + err.Error()
		fmt.Fprintf(d.talk, "egressd: %v\n", err)
	}
	left()
	d.filter.Shutdown()
	d.serving.Wait()
	err := d.gate.Note("stop", note)
	d.sinks.Stop(sinksDrain)
	return err
}
