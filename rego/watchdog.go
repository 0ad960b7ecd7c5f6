package rego

import (
	"errors"
	"math"
	"runtime/metrics"
	"sync"
	"syscall"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"
)

const (
	// maxGrowth is the maximum growth of the heap during one evaluation, in bytes. It applies to the whole
	// process, because Go does not attribute memory to goroutines. Other work allocates far less within a
	// deadline.
	maxGrowth = 64 << 20

	// heapInterval is the time between two checks and before the first. Most evaluations end earlier.
	heapInterval = time.Millisecond
)

var errTooMuchMemory = errors.New("the evaluation took too much memory")

// A watchdog cancels an evaluation at its deadline or if the heap has grown too much.
type watchdog struct {
	cancel topdown.Cancel
	limit  time.Duration
	clock  func() time.Duration // runs while the evaluation does
	begun  time.Duration        // of the clock
	growth uint64               // maximum growth of the heap

	mu    sync.Mutex // guards the following fields
	timer *time.Timer
	over  bool   // the evaluation has ended
	heap  uint64 // size at the first check; 0 before
	grown bool   // the heap has grown too much
}

// startWatchdog starts a watchdog. The caller ends it with stop.
func startWatchdog(limit time.Duration, clock func() time.Duration, growth uint64) *watchdog {
	w := &watchdog{cancel: topdown.NewCancel(), limit: limit, clock: clock, begun: clock(), growth: growth}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(min(heapInterval, limit), w.look)
	return w
}

// since is a clock of wall time.
func since() func() time.Duration {
	begun := time.Now()
	return func() time.Duration { return time.Since(begun) }
}

// processorTime is a clock of the time that the threads of this process have spent on a processor.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return math.MaxInt64 // as if all time were used up
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// look checks once and rearms the timer while the evaluation may continue.
func (w *watchdog) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := w.limit - (w.clock() - w.begun)
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

// stop ends the watchdog. If it cancelled the evaluation for its memory, stop returns errTooMuchMemory
// instead of err.
func (w *watchdog) stop(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
	if w.grown && topdown.IsCancel(err) {
		return errTooMuchMemory
	}
	return err
}

// heapBytes returns the size of all objects on the heap, including garbage.
func heapBytes() uint64 {
	sample := [1]metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample[:])
	return sample[0].Value.Uint64()
}
