package run

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/daemon/runs"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs/sink"
	"github.com/egressd/egressd/record"
)

// stop ends what waits for the sandbox, and records why: what its program has left
// behind has no network from now on.
func (r *runner) stop(why string) {
	r.names.Shutdown()
	for _, d := range r.sockets.UDP {
		d.Close()
	}
	r.ports.stop()
	r.sockets.Programs.Close()
	at, cancel := context.WithCancel(context.Background())
	cancel()
	_ = r.Server.Shutdown(at) // that something was still open is no error here
	r.serving.Wait()
	r.Daemon.Serving.Wait()
	if err := r.Gate.Records.Note(record.KindStop, why); err != nil {
		r.Complain(err)
	}
	for _, s := range r.Sent() {
		r.sayUnsent(&s)
	}
}

// sayUnsent says what a sink has not got of the log.
func (r *runner) sayUnsent(s *sink.State) {
	later := "a later run sends them"
	if r.temporary != "" {
		later = "they are in " + r.folder
	}
	why := ""
	if s.Failing() {
		why = ": " + s.Error
	}
	r.Complain(fmt.Errorf("the sink %s has not got %s of this run%s; %s", s.Name, quantity.Plural(int(s.LagRecords)+len(s.Aside), "record"), printable.Text(why), later)) // --quiet shows it, too
}

// tidy releases the index of runs and removes old logs, once the program has run for [runs.HeldFor]. After a shorter
// run it removes old logs in one run of sixteen, so that most short runs end sooner.
func (r *runner) tidy(over context.Context) {
	select {
	case <-over.Done():
		if !strings.HasSuffix(r.index.Run, "0") {
			return
		}
	case <-time.After(runs.HeldFor):
		if err := r.index.KeepGoing(r.Log); err != nil {
			r.Complain(err)
		}
	}
	r.sweep()
}

func (r *runner) sweep() {
	if err := runs.Sweep(filepath.Dir(r.folder), time.Now()); err != nil {
		r.Complain(fmt.Errorf("remove the logs of old runs: %w", err))
	}
}

// close releases what prepare has opened.
func (r *runner) close() {
	r.keys.close()
	if r.policyEnd != nil {
		r.policyEnd()
	}
	if r.beside != nil {
		r.ports.stop()
		r.beside.close()
	}
	if r.Daemon == nil {
		return
	}
	recorded := r.Log != nil
	if recorded {
		r.index.Hold()
	}
	go r.jail.TakeDown() // while the log is synced
	r.Daemon.Close()
	if recorded {
		r.attestRun()
	}
	r.index.StopAnchors(daemon.AnchorsDrain)
}

// conclude prints the summary of the run, and returns its exit code, and the commands that allow what was denied.
func (r *runner) conclude(code int, took time.Duration) (int, []string) {
	c := r.tally.Counts()
	r.sayPolicyChanged()
	summarize(r.talk, c, took, r.denyMessage(), r.logCommand())
	r.registerEnd(code, c)
	r.writeSummary(code, c, took)
	return r.exitCode(code, c), offered(c)
}
