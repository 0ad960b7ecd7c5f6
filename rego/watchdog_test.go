package rego

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/policy"
)

// maxHeap is by how much bombs may make the heap of the process grow, all together:
// by what one may take for each that runs at once, ahead or not, and by as much again
// that is not collected yet.
func maxHeap(growth uint64) uint64 { return 2 * uint64(2*parallel()) * growth }

// TestMemoryBombs evaluates, as often at once as can be, what takes memory without
// end, under a deadline that would let it.
func TestMemoryBombs(t *testing.T) {
	const growth = maxGrowth / 4 // so that it takes less time
	for name, text := range map[string]string{
		"a list of lists":    `count([x | some a in numbers.range(1, 100000); some b in numbers.range(1, 1000); x := [a, b, a, b, a, b, a, b]]) > 0`,
		"a range on its own": `count(numbers.range(1, 1000000000)) > 0`,
	} {
		t.Run(name, func(t *testing.T) {
			rule := "package egress\nallow contains {\"rule\": \"r\"} if { " + text + " }\nallow contains {\"rule\": \"s\"} if { input.http.method == \"GET\"; " + text + " }"
			e := mustLoad(t, rule, Options{Deadline: time.Minute, Cached: -1})
			e.growth = growth
			before := collected()
			most := peak(func() {
				var wg sync.WaitGroup
				for range 2 * parallel() {
					wg.Go(func() {
						for _, h := range []*policy.HTTPRequest{nil, {Method: "GET", Path: "/"}} {
							if _, err := e.Evaluate(context.Background(), &policy.Request{HTTP: h}); !errors.Is(err, errTooMuchMemory) {
								t.Errorf("said %v", err)
							}
						}
					})
				}
				wg.Wait()
			})
			if most > before && most-before > maxHeap(growth) {
				t.Errorf("the heap has grown by %d MiB, more than %d", (most-before)>>20, maxHeap(growth)>>20)
			}
			t.Logf("the heap has grown by %d MiB", (int64(most)-int64(before))>>20)
		})
	}
}

func collected() uint64 {
	runtime.GC()
	runtime.GC()
	return heapBytes()
}

// peak returns the most that the heap holds while f runs.
func peak(f func()) (most uint64) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	for {
		most = max(most, heapBytes())
		select {
		case <-done:
			return most
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// TestAWatchSaysWhy has only what it has cancelled itself count as too large.
func TestAWatchSaysWhy(t *testing.T) {
	cancelled, other := &topdown.Error{Code: topdown.CancelErr}, errors.New("other")
	for _, row := range []struct {
		grown     bool
		err, want error
	}{
		{false, cancelled, cancelled},
		{true, cancelled, errTooMuchMemory},
		{true, other, other},
		{true, nil, nil},
	} {
		w := startWatchdog(time.Minute, since(), maxGrowth)
		w.grown = row.grown
		if got := w.stop(row.err); got != row.want {
			t.Errorf("%+v: said %v", row, got)
		}
	}
}

// TestAPatientEvaluationTakesItsTime gives a policy that needs longer than the deadline five seconds of
// processor time, while the machine is busy with something else, and does not let one run on that never ends.
func TestAPatientEvaluationTakesItsTime(t *testing.T) {
	const long = `package egress
allow contains {"rule": "slow"} if {
	count([x | some a in numbers.range(1, 300); some b in numbers.range(1, 300); x := a * b]) > 0
	input.http.method == "GET"
}
`
	r := policy.Request{HTTP: &policy.HTTPRequest{Method: "GET", Path: "/"}}
	if _, err := mustLoad(t, long, Options{Deadline: time.Millisecond, Cached: -1}).Evaluate(t.Context(), &r); !errors.Is(err, errTooSlow) {
		t.Errorf("within a millisecond: %v", err)
	}
	e := mustLoad(t, long, Options{Patient: true, Cached: -1})
	if d, err := e.Evaluate(t.Context(), &r); err != nil || d.Verdict != policy.Allow {
		t.Errorf("within five seconds: %v, %v", d.Verdict, err)
	}
	e = mustLoad(t, slowForOne, Options{Patient: true, Cached: -1})
	e.deadline = 100 * time.Millisecond
	r.Sandbox.Name = "slow"
	if _, err := e.Evaluate(t.Context(), &r); !errors.Is(err, errTooSlow) {
		t.Errorf("one that never ends: %v", err)
	}
}

// TestWaitingCostsNoProcessorTime: the clock of a patient evaluation stands still while the process waits.
func TestWaitingCostsNoProcessorTime(t *testing.T) {
	w := startWatchdog(time.Second, func() time.Duration { return 0 }, maxGrowth)
	w.mu.Lock()
	begun := w.begun
	w.mu.Unlock()
	w.look()
	if err := w.stop(nil); err != nil || begun != 0 || w.cancel.Cancelled() {
		t.Errorf("cancelled without having run: %v", err)
	}
	clock := mustLoad(t, slowForOne, Options{Patient: true}).clock()
	before := clock()
	time.Sleep(100 * time.Millisecond) // what is measured
	if used := clock() - before; used < 0 || used > 90*time.Millisecond {
		t.Errorf("%v of processor time were used up by waiting", used)
	}
}
