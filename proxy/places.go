package proxy

import (
	"sync"

	"github.com/egressd/egressd/sandbox"
)

// places are the connections that may be open at a time. Nobody gets one more where it
// has as many as are free: one that takes all it can has half of them, two have a third
// each, and somebody who has none is let in at any time.
//
// Who has a connection may only be known by its credentials. Until they are there it is
// counted with where it comes from, which others may have in common with it, so there the
// oldest of those that have shown nothing gives way to a new one.
type places struct {
	server *Server
	most   int

	mu     sync.Mutex // guards what follows, and all in shares and places that is not final
	open   int
	shares map[sandbox.Holder]*share
	swept  int // shares that were left when those of nobody were last removed
}

// A share is what one holder has.
type share struct {
	server *Server // final
	known  bool    // final: the holder is a sandbox

	held        int
	first, last *place // that may have to give way, the oldest first
}

// A place is that of one connection. Its zero value holds none.
type place struct {
	share      *share // nil: none
	lost       bool   // it has given way
	of         loser
	prev, next *place // of the share
}

// A loser is told that its place is gone. It may not wait.
type loser interface{ lose() }

const sweptMost = 64

// of returns what a holder has. p.mu is held.
func (p *places) of(h sandbox.Holder) *share {
	if s := p.shares[h]; s != nil {
		return s
	}
	if len(p.shares) > 2*p.swept+sweptMost {
		for other, s := range p.shares {
			if s.held == 0 {
				delete(p.shares, other)
			}
		}
		p.swept = len(p.shares)
	}
	s := &share{server: p.server, known: h.Sandbox != ""}
	p.shares[h] = s
	return s
}

// take gives a place to a connection of h, or reports that there is none for it. Somebody
// else of h may have to give way.
func (p *places) take(at *place, h sandbox.Holder, of loser) (s *share, ok bool) {
	p.mu.Lock()
	s = p.of(h)
	var gone *place
	if s.held >= p.most-p.open {
		if gone = s.first; gone == nil {
			p.mu.Unlock()
			return s, false
		}
		p.free(gone)
		gone.lost = true
	}
	p.open++
	s.held++
	at.share, at.of = s, of
	if !s.known {
		s.append(at)
	}
	p.mu.Unlock()
	if gone != nil {
		gone.of.lose()
	}
	return s, true
}

// reserve is take for what gives way to nobody, and is given back by leaveFor.
func (p *places) reserve(h sandbox.Holder) (s *share, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.of(h); s.held >= p.most-p.open {
		return s, false
	}
	p.open++
	s.held++
	return s, true
}

// move counts what reserve gave with h, and reports whether h may have it.
func (p *places) move(from *share, h sandbox.Holder) (s *share, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.of(h); s == from {
		return s, true
	}
	if s.held >= p.most-p.open+1 { // without this one
		return from, false
	}
	from.held--
	s.held++
	return s, true
}

// prove counts a place with the sandbox whose it has turned out to be, and reports whether
// that may have it. A place that was lost is not to be had back.
func (p *places) prove(at *place, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case at.lost:
		return false
	case at.share == nil || at.share.known:
		return true
	}
	s := p.of(sandbox.Holder{Sandbox: name})
	if s.held >= p.most-p.open+1 { // without this one
		return false
	}
	at.share.remove(at)
	at.share.held--
	s.held++
	at.share = s
	return true
}

// pass has to be what from was, for somebody else to be told of its loss, and reports whether
// there is anything to pass on.
func (p *places) pass(from, to *place, of loser) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from.lost {
		return false
	}
	to.share, to.of = from.share, of
	if s := from.share; s != nil && !s.known {
		s.remove(from)
		s.append(to)
	}
	from.share = nil
	return true
}

// beside gives to one more place of the same sandbox, for as long as a connection changes hands.
func (p *places) beside(from, to *place) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to.share = from.share; to.share != nil {
		p.open++
		to.share.held++
		return to.share
	}
	return &share{server: p.server}
}

// leave gives a place back, where it is still held.
func (p *places) leave(at *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free(at)
}

// leaveFor gives back a place of s that nothing else is known of any more.
func (p *places) leaveFor(s *share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	s.held--
}

// free is leave where p.mu is held.
func (p *places) free(at *place) {
	s := at.share
	if s == nil {
		return
	}
	if !s.known {
		s.remove(at)
	}
	p.open--
	s.held--
	at.share = nil
}

// holds reports whether a place is held: it was given, and has been neither given back
// nor lost.
func (p *places) holds(at *place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return at.share != nil
}

// count is how many places are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (s *share) append(at *place) {
	at.prev = s.last
	if s.last == nil {
		s.first = at
	} else {
		s.last.next = at
	}
	s.last = at
}

func (s *share) remove(at *place) {
	if at.prev == nil {
		s.first = at.next
	} else {
		at.prev.next = at.next
	}
	if at.next == nil {
		s.last = at.prev
	} else {
		at.next.prev = at.prev
	}
	at.prev, at.next = nil, nil
}
