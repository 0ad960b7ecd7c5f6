// Package fair shares something bounded among holders, such as sandboxes, so that none can starve the others. One rule
// holds for what is held for a while: a holder may take another one only while it holds fewer than are free. One
// greedy holder ends with half of all, two with a third each, and a holder with none gets one as long as any is free.
// A part of a holder, such as one sandbox of a template, may take another one only while it holds fewer than the holder could
// still take.
//
//	conns := fair.Connections[netip.Addr]{Most: 20_000} // of which it may not be known yet whose they are
//	pool := fair.Pool[string]{Most: 512}         // of something else that is held
//	var memory fair.MemoryQuota                  // bytes, a number for each holder
//	recent := fair.Recent{Most: 12_000}          // of something that comes back by itself
//	turns := fair.NewTurns(4)                    // to work, one after the other
//	bucket := fair.Bucket{Rate: 200, Most: 1000} // of something that may happen so often
package fair

import "sync"

// mayTake is the rule of this package.
func mayTake(held, free int) bool { return held < free }

// couldTake returns how many a holder could still take, if nobody else does: each one leaves one less for the next.
func couldTake(held, free int) int { return (free - held + 1) / 2 }

// A Pool bounds how many of something are held at a time.
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
	if n := p.held[h]; !mayTake(n, p.Most-p.all) || p.MostOfOne > 0 && n >= p.MostOfOne {
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
