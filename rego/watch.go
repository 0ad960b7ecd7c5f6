package rego

import (
	"errors"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"
)

const (
	// maxGrowth is how many bytes the heap may grow by while one evaluation runs.
	// That of the process is looked at, since nothing tells whose memory is whose:
	// what else goes on takes far less in the time of a deadline.
	maxGrowth = 64 << 20

	// heapInterval is how often the heap is looked at, and after what time first:
	// most evaluations are over by then.
	heapInterval = time.Millisecond
)

var errTooMuchMemory = errors.New("the evaluation took too much memory")

// A watch cancels one evaluation when its time is over, or when the heap has grown
// too much.
type watch struct {
	cancel topdown.Cancel
	end    time.Time
	growth uint64 // how much the heap may grow by

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	over  bool   // the evaluation has ended
	heap  uint64 // when it was looked at first; 0 before
	grown bool   // too much
}

// watchFor begins to watch. Whoever asked ends it with stop.
func watchFor(limit time.Duration, growth uint64) *watch {
	w := &watch{cancel: topdown.NewCancel(), end: time.Now().Add(limit), growth: growth}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(min(heapInterval, limit), w.look)
	return w
}

// look is what the timer does. It sets the timer again while the evaluation may go
// on.
func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := time.Until(w.end)
	switch now := heapBytes(); {
	case w.over:
		return
	case w.heap == 0:
		w.heap = now
	case now > w.heap+w.growth:
		w.grown = true
	}
	if left <= 0 || w.grown {
		w.cancel.Cancel()
		return
	}
	w.timer.Reset(min(heapInterval, left))
}

// stop ends the watch, and says what was wrong where err is that of an evaluation
// that the watch has cancelled for its memory.
func (w *watch) stop(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
	if w.grown && topdown.IsCancel(err) {
		return errTooMuchMemory
	}
	return err
}

// heapBytes is what the objects on the heap take, those that the collector has not
// found yet to be unused among them.
func heapBytes() uint64 {
	sample := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample[:])
	return sample[0].Value.Uint64()
}
