// Package turns limits how many callers work at once, and alternates between sandboxes. However many turns one sandbox
// asks for, another one waits for at most one turn of each waiting sandbox.
//
//	t := turns.New(4)
//	if err := t.Take(ctx, sandbox); err != nil {
//		return err
//	}
//	defer t.Give()
package turns

import (
	"context"
	"slices"
	"sync"
)

// Turns are so many at once. The next one is that of the sandbox that has waited longest
// since its last. They are safe for concurrent use.
type Turns struct {
	mu      sync.Mutex
	free    int                        // not 0 only where nobody waits
	waiting map[string][]chan struct{} // by sandbox, the first come first
	order   []string                   // of the sandboxes that wait
}

// New returns turns of which n are there at once.
func New(n int) *Turns { return &Turns{free: n, waiting: map[string][]chan struct{}{}} }

// Take waits for a turn of sandbox, and returns ctx's error if ctx ends first. The caller calls Give after the turn.
func (t *Turns) Take(ctx context.Context, sandbox string) error {
	mine := t.queue(sandbox)
	if mine == nil {
		return nil
	}
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
		t.leave(sandbox, mine)
		return ctx.Err()
	}
}

// TakeNow takes a free turn without waiting, and reports whether there was one.
func (t *Turns) TakeNow() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free == 0 {
		return false
	}
	t.free--
	return true
}

// Waiting returns the number of waiting callers. The holder of a long turn checks it now and then, and gives its turn
// away if somebody waits.
func (t *Turns) Waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, sandbox := range t.order {
		n += len(t.waiting[sandbox])
	}
	return n
}

// queue takes a turn and returns nil where there is one, and otherwise what is
// closed when there is.
func (t *Turns) queue(sandbox string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		return nil
	}
	if len(t.waiting[sandbox]) == 0 {
		t.order = append(t.order, sandbox)
	}
	mine := make(chan struct{})
	t.waiting[sandbox] = append(t.waiting[sandbox], mine)
	return mine
}

// leave takes back a wait. A turn that came meanwhile is given on.
func (t *Turns) leave(sandbox string, mine chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiting[sandbox], mine)
	if i < 0 {
		t.pass()
		return
	}
	t.waiting[sandbox] = slices.Delete(t.waiting[sandbox], i, i+1)
	if len(t.waiting[sandbox]) == 0 {
		delete(t.waiting, sandbox)
		t.order = slices.DeleteFunc(t.order, func(s string) bool { return s == sandbox })
	}
}

// Give ends a turn.
func (t *Turns) Give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass()
}

// pass gives a turn to the next. The lock is held.
func (t *Turns) pass() {
	if len(t.order) == 0 {
		t.free++
		return
	}
	sandbox := t.order[0]
	t.order = t.order[1:]
	queue := t.waiting[sandbox]
	close(queue[0])
	if len(queue) == 1 {
		delete(t.waiting, sandbox)
		return
	}
	t.waiting[sandbox] = queue[1:]
	t.order = append(t.order, sandbox)
}
