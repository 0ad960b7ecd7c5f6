package daemon

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
	"github.com/egressd/egressd/daemon/confine"
)

// sinksDrain is how long sinks may go on sending after the last record. They send the rest after the next start.
const sinksDrain = 3 * time.Second

// AnchorsDrain is how long the last checkpoint may take to those who keep it.
const AnchorsDrain = 2 * time.Second

// collectAt makes the collector run at half the usual growth. Most of what a
// connection allocates is gone before it ends, and idle tunnels are what is
// left: this takes a third off the memory of each, for a CPU cost that the
// benchmark does not show.
const collectAt = 50

// Serve runs the daemon for the policy file at path until a signal ends it, and gives tunnels that
// are open then as long as drain. It confines this process for good.
func Serve(ctx context.Context, talk io.Writer, path string, drain time.Duration, t Tailoring) (err error) {
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
	d, err := New(talk, path, t)
	if err != nil {
		return err
	}
	defer d.Close()
	confine.WarnFiles(talk, d.Server.Limits.Connections, d.Config.File.Limits.Connections)
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
func (d *Daemon) follow(ctx context.Context, hangup <-chan os.Signal) {
	changes := d.reloads.changes(ctx)
	trees := time.NewTicker(d.reloads.trees)
	defer trees.Stop()
	alive, rest := d.manager.watchdog()
	defer rest()
	for {
		d.bundles.age(ctx)
		d.bundles.poll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			d.manager.telling(func() { _ = d.reloads.reload(ctx, "SIGHUP", true) }) // it has said what was wrong
			d.bundles.pollNow()
		case a := <-d.admin.orders:
			d.manager.telling(func() { a.told <- d.reloads.reload(ctx, a.why, true) })
			d.bundles.pollNow()
		case <-changes:
			_ = d.reloads.reload(ctx, "the file changed", false)
		case a := <-d.bundles.fetches:
			d.bundles.arrive(ctx, a)
		case <-d.bundles.ageing():
		case do := <-d.grants.turns:
			do(ctx)
		case <-d.grants.ends.come:
			d.grants.expire(ctx)
		case <-d.observing.ends.come:
			d.observing.expire(ctx)
		case <-alive:
			d.manager.notify(sd.SdNotifyWatchdog)
		case <-trees.C:
			if d.Config.ProjectsMoved() {
				_ = d.reloads.reload(ctx, "a project changed", false)
			}
		}
	}
}

// stop ends the daemon's listeners, then, after drain at most, its tunnels, and last the operator's listener and the
// grants. It records that the daemon stopped, and gives collectors of records the time to take them; [Daemon.Close] ends the log.
func (d *Daemon) stop(drain time.Duration) error {
	d.manager.notify(sd.SdNotifyStopping)
	d.admin.isEnding()
	fmt.Fprintf(d.Talk, "egressd: stopping; open tunnels have %s\n", drain)
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	note := "stopped"
	left := d.attachments.stop(ctx)
	if err := d.Server.Shutdown(ctx); err != nil {
		note = "stopped: " + err.Error()
		fmt.Fprintf(d.Talk, "egressd: %v\n", err)
	}
	left()
	d.nameServer.Shutdown()
	d.Serving.Wait()
	d.admin.end()
	d.scraping.end()
	d.grants.endGrants()
	err := d.Gate.Records.Note("stop", note)
	d.audit.sinks.Stop(sinksDrain)
	return err
}

type notifier struct{ daemon *Daemon }

// notify tells the service manager how the daemon is (sd_notify(3)), where one asked.
func (nm *notifier) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		nm.daemon.Complain(fmt.Errorf("tell the service manager: %w", err))
	}
}

// telling has the service manager know that what f does is a reload.
func (nm *notifier) telling(f func()) {
	nm.notify(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec())
	f()
	nm.notify(sd.SdNotifyReady)
}

// watchdog ticks at half of the service manager's watchdog interval, or never without one. The goroutine that puts
// policies in force answers the ticks.
func (nm *notifier) watchdog() (tick <-chan time.Time, stop func()) {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		nm.daemon.Complain(fmt.Errorf("watchdog of the service manager: %w", err))
	}
	if err != nil || every <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(every / 2)
	return t.C, t.Stop
}
