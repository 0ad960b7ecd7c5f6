package rego

import (
	"context"
	"path"
	"runtime"
	"sync"

	"github.com/egressd/egressd/internal/turns"
)

// most is how many evaluations run at once, at most. They only compute,
// so that more would not be faster, and each may take memory.
const most = 4

// parallel leaves a processor to the event loops, where the machine has more than one: an
// evaluation computes for up to 100 ms, and a loop would wait for its end.
func parallel() int { return max(1, min(runtime.GOMAXPROCS(0)-1, most)) }

// evaluations are the turns of all policies of the process: they share its processors.
var evaluations = turns.New(parallel())

// copiesBytes is what the copies of a policy beside the first may take in memory,
// by weight.
const copiesBytes = 64 << 20

// weigh estimates what a copy of the policy takes in memory, by what was measured:
// rules take much more than their text, and data is kept in the shape of lists too.
func (set *sourceSet) weigh(sources []Source) (bytes int) {
	for _, s := range sources {
		switch {
		case isTest(s.Name) && !set.tests:
		case path.Ext(s.Name) == ".rego":
			bytes += 16 * len(s.Text)
		default:
			bytes += 8 * len(s.Text)
		}
	}
	return bytes
}

// A pool is the copies of a policy for looking ahead. OPA then writes into the
// terms of the modules, the data and the input (ast.Transform), so that a copy is for
// one evaluation at a time, and shares terms with nothing.
type pool struct {
	turns *turns.Turns // as many as there may be copies
	more  func() (*compiled, error)

	mu   sync.Mutex // guards what follows
	free []*compiled
}

// newPool makes the first copy. Further ones are made when they are wanted.
func newPool(n int, more func() (*compiled, error)) (*pool, error) {
	first, err := more()
	if err != nil {
		return nil, err
	}
	if n == 1 {
		more = nil // what the first was made from is not needed any more
	}
	return &pool{turns: turns.New(n), more: more, free: []*compiled{first}}, nil
}

// copies is how many copies a policy of that weight may have.
func copies(bytes int) int { return min(parallel(), 1+copiesBytes/max(bytes, 1)) }

// take waits for a copy, until the context ends. Whoever has it calls give.
func (p *pool) take(ctx context.Context, sandbox string) (c *compiled, err error) {
	if err := p.turns.Take(ctx, sandbox); err != nil {
		return nil, err
	}
	if c, err = p.one(); err != nil {
		p.turns.Give()
	}
	return c, err
}

// one returns a copy that is free, or makes one: whoever has a turn may.
func (p *pool) one() (*compiled, error) {
	if c := p.pop(); c != nil {
		return c, nil
	}
	return p.more()
}

func (p *pool) pop() *compiled {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.free) - 1
	if last < 0 {
		return nil
	}
	c := p.free[last]
	p.free = p.free[:last]
	return c
}

func (p *pool) give(c *compiled) {
	p.mu.Lock()
	p.free = append(p.free, c)
	p.mu.Unlock()
	p.turns.Give()
}
