// Package quota shares something bounded fairly among holders, such as sandboxes or users.
package quota

import "sync"

// A Pool bounds how many of something are held at a time. A holder may take another one only while it holds fewer
// than are free: one greedy holder ends with half of the pool, two with a third each, and a holder with none gets
// one as long as any is free.
//
// A Pool is safe for concurrent use. The zero value holds nothing and grants nothing.
type Pool[H comparable] struct {
	Most      int // of all holders
	MostOfOne int // of one holder; 0 means no other bound than what is free

	mu   sync.Mutex // guards the rest
	all  int
	held map[H]int // without zeros
}

// Acquire takes one for h, or returns false.
func (p *Pool[H]) Acquire(h H) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.held[h]; n >= p.Most-p.all || p.MostOfOne > 0 && n >= p.MostOfOne {
		return false
	}
	if p.held == nil {
		p.held = map[H]int{}
	}
	p.all++
	p.held[h]++
	return true
}

// Release gives back one that h holds.
func (p *Pool[H]) Release(h H) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if p.held[h]--; p.held[h] == 0 {
		delete(p.held, h)
	}
}

// Held returns how many h holds, and how many all do.
func (p *Pool[H]) Held(h H) (of, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[h], p.all
}
