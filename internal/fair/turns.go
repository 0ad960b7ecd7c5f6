package fair

import (
	"context"
	"slices"
	"sync"
)

// Turns limit how many callers work at once, and alternate between holders: however many turns one holder
// asks for, another one waits for at most one turn of each waiting holder. The turns of a holder alternate between its
// sandboxes in the same way: a holder is a sandbox, or a template with many. A free turn goes to the holder whose last turn lies furthest back, and within
// the holder to the sandbox whose last turn does. Turns are safe for concurrent use.
type Turns struct {
	mu      sync.Mutex
	free    int // not 0 only while nobody waits
	holders round[*round[chan struct{}]]
}

// NewTurns returns turns of which n are there at once.
func NewTurns(n int) *Turns { return &Turns{free: n} }

// Take waits for a turn of a sandbox of holder, and returns ctx's error if ctx ends first. The caller calls Give after
// the turn.
func (t *Turns) Take(ctx context.Context, holder, sandbox string) error {
	mine := t.queue(holder, sandbox)
	if mine == nil {
		return nil
	}
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
		t.leave(holder, sandbox, mine)
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
	for _, sandboxes := range t.holders.queues {
		for _, queue := range sandboxes[0].queues {
			n += len(queue)
		}
	}
	return n
}

// queue takes a free turn and returns nil, or returns a channel that is closed when the caller has its turn.
func (t *Turns) queue(holder, sandbox string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		return nil
	}
	if len(t.holders.queues[holder]) == 0 {
		t.holders.push(holder, &round[chan struct{}]{})
	}
	mine := make(chan struct{})
	t.holders.queues[holder][0].push(sandbox, mine)
	return mine
}

// leave takes back a wait. A turn that came meanwhile is given on.
func (t *Turns) leave(holder, sandbox string, mine chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sandboxes := t.holders.queues[holder]
	if len(sandboxes) == 0 || !sandboxes[0].remove(sandbox, mine) {
		t.pass()
		return
	}
	if len(sandboxes[0].order) == 0 {
		t.holders.remove(holder, sandboxes[0])
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
	if len(t.holders.order) == 0 {
		t.free++
		return
	}
	holder, sandboxes := t.holders.pop()
	_, next := sandboxes.pop()
	close(next)
	if len(sandboxes.order) > 0 {
		t.holders.push(holder, sandboxes)
	}
}

// A round holds what waits by name: first in, first out within a name, and names in turn.
type round[T comparable] struct {
	queues map[string][]T // none is empty
	order  []string       // of the names
}

func (r *round[T]) push(name string, one T) {
	if r.queues == nil {
		r.queues = map[string][]T{}
	}
	if len(r.queues[name]) == 0 {
		r.order = append(r.order, name)
	}
	r.queues[name] = append(r.queues[name], one)
}

// pop removes the first entry of the next name, and moves that name to the end of the order. The round must not be empty.
func (r *round[T]) pop() (name string, one T) {
	name, r.order = r.order[0], r.order[1:]
	queue := r.queues[name]
	one = queue[0]
	if len(queue) == 1 {
		delete(r.queues, name)
		return name, one
	}
	r.queues[name] = queue[1:]
	r.order = append(r.order, name)
	return name, one
}

// remove reports whether one waited under name.
func (r *round[T]) remove(name string, one T) bool {
	i := slices.Index(r.queues[name], one)
	if i < 0 {
		return false
	}
	r.queues[name] = slices.Delete(r.queues[name], i, i+1)
	if len(r.queues[name]) == 0 {
		delete(r.queues, name)
		r.order = slices.DeleteFunc(r.order, func(s string) bool { return s == name })
	}
	return true
}
