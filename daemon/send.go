package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/egressd/egressd/daemon/runs"
	"github.com/egressd/egressd/logs/sink"
)

// unsentEvery is the time between two attempts to send what earlier runs could not. Tests replace it.
var unsentEvery = time.Minute

// Send has the log of a run sent to the sinks of the policy from now on, with a heartbeat a minute, until ctx is done. It also sends what
// earlier runs in folder could not. It does nothing without a sink. Call Sent at the end.
func (d *Daemon) Send(ctx context.Context, folder string) {
	sinks := d.reloads.made.sinks
	if len(sinks) == 0 {
		return
	}
	origin, _ := d.Log.Origin()
	d.audit.sinks.OfLog(origin)
	d.audit.beats.Origin = origin
	if err := d.audit.sinks.Apply(sinks); err != nil {
		d.Complain(fmt.Errorf("the log of this run is not sent: %w", err))
		return
	}
	d.audit.beat(ctx)
	d.sendRuns(ctx, folder)
}

// sendRuns sends the logs of ended runs in folder that sinks have not got, and tries again while something is left.
func (d *Daemon) sendRuns(ctx context.Context, folder string) {
	sinks := d.reloads.made.sinks
	if len(sinks) == 0 {
		return
	}
	d.Serving.Go(func() {
		for !runs.SendUnsent(ctx, folder, sinks, d.Complain) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(unsentEvery):
			}
		}
	})
}

// Sent ends what Send began, with a last heartbeat, which says how large the log is. It waits a few seconds for receivers, and returns
// the sinks that have not got all; a later run or daemon sends the rest.
func (d *Daemon) Sent() []sink.State {
	sinks := d.reloads.made.sinks
	if len(sinks) == 0 || d.audit.beats.Origin == "" {
		return nil
	}
	d.audit.heartbeat()
	d.audit.sinks.Stop(sinksDrain)
	return runs.Settle(d.Config.File.Audit.Dir, sinks)
}
