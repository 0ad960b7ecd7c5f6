package relay

import (
	"container/heap"
	"time"
)

// A Timer is one call to come.
type Timer struct {
	at    time.Time
	f     func()
	index int // in the heap, -1 when it is not there
}

// After runs f on the loop's goroutine once d has passed.
func (l *Loop) After(d time.Duration, f func()) *Timer {
	t := &Timer{at: time.Now().Add(d), f: f}
	heap.Push(&l.timers, t)
	return t
}

// Stop forgets t, which may be nil or over.
func (l *Loop) Stop(t *Timer) {
	if t != nil && t.index >= 0 {
		heap.Remove(&l.timers, t.index)
	}
}

func (l *Loop) runTimers() {
	for n := 0; n < callsAtOnce && len(l.timers) > 0 && !l.timers[0].at.After(l.now); n++ {
		heap.Pop(&l.timers).(*Timer).f()
	}
}

type timerHeap []*Timer

// waitFor returns the milliseconds until the first timer, rounded up.
func (h timerHeap) waitFor(now time.Time) int {
	if len(h) == 0 {
		return -1
	}
	d := h[0].at.Sub(now)
	if d <= 0 {
		return 0
	}
	return int((d + time.Millisecond - 1) / time.Millisecond)
}

func (h timerHeap) Len() int { return len(h) }

func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timerHeap) Push(x any) {
	t := x.(*Timer)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
