package rego

import (
	"context"
	"slices"
	"sync"
)

// turns lets so many evaluations run at once. The next turn is that of the sandbox
// that has waited longest since its last one, so that a sandbox waits for one turn of
// each other that waits too, however much one of them asks for.
type turns struct {
	mu      sync.Mutex
	free    int                        // not 0 only where nobody waits
	waiting map[string][]chan struct{} // by sandbox, the first come first
	order   []string                   // of the sandboxes that wait
}

func newTurns(n int) *turns { return &turns{free: n, waiting: map[string][]chan struct{}{}} }

// take waits for a turn of a sandbox, until the context ends. Whoever has it calls
// give.
func (t *turns) take(ctx context.Context, sandbox string) error {
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

// queue takes a turn and returns nil where there is one, and otherwise what is
// closed when there is.
func (t *turns) queue(sandbox string) chan struct{} {
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
func (t *turns) leave(sandbox string, mine chan struct{}) {
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

// give ends a turn.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass()
}

// pass gives a turn to the next. The lock is held.
func (t *turns) pass() {
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
