package rego

import (
	"context"
	"runtime"
	"sync"

	"github.com/egressd/egressd/internal/turns"
	"github.com/egressd/egressd/policy"
)

// maxParallel is the maximum number of concurrent evaluations. More would not be faster, and each needs
// memory.
const maxParallel = 4

// parallel leaves one processor to the connections if the machine has several. An evaluation computes for
// up to 100 ms.
func parallel() int { return max(1, min(runtime.GOMAXPROCS(0)-1, maxParallel)) }

// evaluations limits the evaluations of all policies of the process, which share its processors.
var evaluations = turns.New(parallel())

// maxCopied is the maximum size of the files of a policy that may have several copies. A copy takes up to
// sixteen times as much memory.
const maxCopied = 1 << 20

// policyCopies holds copies of a policy for partial evaluation. OPA modifies the terms of modules, data and
// input during partial evaluation (ast.Transform), so a copy serves one evaluation at a time and shares no
// terms.
type policyCopies struct {
	turns *turns.Turns // one for each possible copy
	more  func() (*compiled, error)

	mu   sync.Mutex // guards free
	free []*compiled
}

// newPool creates the first copy. Further copies are created on demand.
func newPool(n int, more func() (*compiled, error)) (*policyCopies, error) {
	first, err := more()
	if err != nil {
		return nil, err
	}
	if n == 1 {
		more = nil // the sources are no longer needed
	}
	return &policyCopies{turns: turns.New(n), more: more, free: []*compiled{first}}, nil
}

// copies returns the maximum number of copies of a policy with files of size bytes.
func copies(size int) int {
	if size > maxCopied {
		return 1
	}
	return parallel()
}

// take waits for a copy until ctx ends. The caller returns it with give.
func (p *policyCopies) take(ctx context.Context, sandbox *policy.Sandbox) (c *compiled, err error) {
	if err := p.turns.Take(ctx, sandbox.Holder(), sandbox.Name); err != nil {
		return nil, err
	}
	if c, err = p.one(); err != nil {
		p.turns.Give()
	}
	return c, err
}

// one returns a free copy or creates one. The caller must hold a turn.
func (p *policyCopies) one() (*compiled, error) {
	if c := p.pop(); c != nil {
		return c, nil
	}
	return p.more()
}

func (p *policyCopies) pop() *compiled {
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

func (p *policyCopies) give(c *compiled) {
	p.mu.Lock()
	p.free = append(p.free, c)
	p.mu.Unlock()
	p.turns.Give()
}
