package run

import (
	"fmt"
	"os"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon"
	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/logs/sink"
)

// signRun keeps the keys of the run's log in memory. The index of runs vouches for them.
func (r *runner) signRun(o *audit.Options) {
	r.index.Keys = o.Keys
	o.Ephemeral = true
	o.Vouch, o.Last = r.index.Vouch, r.index.EndSoon
}

// hideKeys hides the keys that sign logs, and the index of runs, from the program.
func (r *runner) hideKeys(c *config.Config, runs string) {
	r.index.Dir = config.RunsIndexBeside(runs)
	hidden := []string{r.index.Dir}
	if dir, err := c.KeyDir(); err == nil {
		hidden = append(hidden, dir)
	}
	for _, dir := range hidden {
		_ = os.MkdirAll(dir, 0o700) // else the program could make it
		r.hidden = append(r.hidden, dir)
	}
}

// attestRun waits for the record of the last checkpoint in the index. The checkpoint proves the end of the log.
func (r *runner) attestRun() {
	err := r.index.Wait(r.Log)
	if err != nil {
		r.Complain(fmt.Errorf("record the end of the run's log: the index of runs: %w", err))
	}
}

// anchorIndex sends the checkpoints of the index to the anchors of the policy. The run's own log needs
// none: the index has its key and its end.
func (r *runner) anchorIndex(c *config.Config) error {
	anchors := c.File.Audit.Anchors
	c.File.Audit.Anchors = nil
	if r.index.Anchors != nil || len(anchors) == 0 {
		return nil
	}
	d := &daemon.Daemon{Talk: r.talk} // New has not returned the run's own daemon yet
	r.index.Anchors = sink.NewAnchors(r.index.Dir, export.Here(), d.Complain, d.Tell)
	return r.index.Anchors.Apply(anchors)
}
