package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
)

// lateAfter is the delay after the end of a grant at which open flows are decided a second time: a flow that was being
// opened may rest on an older decision.
const lateAfter = 500 * time.Millisecond

// endings wait for the ends of grants. The goroutine that reloads, which puts the policy in force
// without them, may be busy for minutes with a reload that fetches.
type endings struct {
	mu      sync.Mutex
	timer   *time.Timer
	seen    time.Duration // up to when ends were looked at, by the clock of granting
	stopped bool
}

// watchEnds cuts what is open only because of grants that have ended by now, and is called again
// when the next one ends. It is to be called when other grants are in force; any goroutine may.
func (gs *granting) watchEnds() {
	e := &gs.ends
	e.mu.Lock()
	due, wait := e.look(gs.daemon.operator.now.Load().grants, gs.now()) // with the lock: the last look is at what is in force
	e.wake(wait, gs.watchEnds)
	e.mu.Unlock()
	if due {
		gs.daemon.Gate.Recheck(context.Background())
	}
}

// look reports whether an allow has ended since the last look, and in how long the next one will;
// 0 where there is none. An end is reported a second time after lateAfter. e.mu is held.
func (e *endings) look(grants []*grant, at time.Duration) (due bool, wait time.Duration) {
	for _, g := range grants {
		if g.rule.Effect != policy.Allow {
			continue
		}
		for _, end := range []time.Duration{g.end, g.end + lateAfter} {
			switch {
			case end <= at:
				due = due || end > e.seen
			case wait == 0 || end-at < wait:
				wait = end - at
			}
		}
	}
	e.seen = max(e.seen, at)
	return due, min(wait, lookEvery) // timers stand still while the machine sleeps
}

// wake has look called after wait, in the place of what was to be called before. e.mu is held.
func (e *endings) wake(wait time.Duration, look func()) {
	if e.timer != nil {
		e.timer.Stop()
	}
	if e.timer = nil; wait > 0 && !e.stopped {
		e.timer = time.AfterFunc(wait, look)
	}
}

// stop has nothing looked at any more.
func (e *endings) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	e.wake(0, nil)
}
