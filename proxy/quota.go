package proxy

import (
	"sync"

	"github.com/egressd/egressd/sandbox"
)

// A connQuota bounds the connections that may be open at a time. A holder may open another connection only
// while it has fewer open than are still free: one greedy holder ends with half of them, two with a third
// each, and a holder without connections always gets one.
//
// All sandboxes of a template are one holder. One of them may open another connection only while it has fewer open than
// its template could still open.
//
// Some sandboxes are only known by their credentials. Before those arrive, a connection counts with its source
// address, which other sandboxes may share. If that address has used up its part, its oldest unproven
// connection is evicted.
type connQuota struct {
	server *Server
	most   int

	mu      sync.Mutex // guards what follows, and all in connHolders and admissions that is not final
	open    int
	holders map[sandbox.Holder]*connHolder
	swept   int // connHolders that were left when the empty ones were last removed
}

// A connHolder is what one holder has.
type connHolder struct {
	server    *Server     // final
	isSandbox bool        // final: the holder is a sandbox
	template  *connHolder // final: of a sandbox of a template, or nil

	held        int        // of a template, what its sandboxes hold
	first, last *admission // that may have to give way, the oldest first
}

// An admission is that of one connection. Its zero value holds none.
type admission struct {
	holder     *connHolder // nil: none
	evicted    bool        // it has given way
	owner      evictable
	prev, next *admission // of the holder
}

// An evictable is a connection that can be evicted. evict may not wait.
type evictable interface{ evict() }

const sweptMost = 64

// holderLocked returns what a holder has. p.mu is held.
func (p *connQuota) holderLocked(h sandbox.Holder) *connHolder {
	if s := p.holders[h]; s != nil {
		return s
	}
	if len(p.holders) > 2*p.swept+sweptMost {
		for other, s := range p.holders {
			if s.held == 0 {
				delete(p.holders, other)
			}
		}
		p.swept = len(p.holders)
	}
	s := &connHolder{server: p.server, isSandbox: h.Sandbox != ""}
	p.holders[h] = s
	return s
}

// sandboxLocked is holderLocked for a sandbox that counts with holder, which is the sandbox itself or its template.
func (p *connQuota) sandboxLocked(holder, name string) *connHolder {
	s := p.holderLocked(sandbox.Holder{Sandbox: name})
	if holder != name && s.template == nil {
		s.template = p.holderLocked(sandbox.Holder{Sandbox: holder})
		s.template.held += s.held
	}
	return s
}

// mayHold reports whether s may hold one more, where so many are free.
func (s *connHolder) mayHold(free int) bool {
	if s.template == nil {
		return s.held < free
	}
	left := (free - s.template.held + 1) / 2 // that the template could still open
	return s.held < left
}

// count adds n to what s holds.
func (s *connHolder) count(n int) {
	s.held += n
	if s.template != nil {
		s.template.held += n
	}
}

// acquire admits a connection of h, or reports that h has too many. Somebody
// else of h may have to give way. It sets holder before of can be evicted.
func (p *connQuota) acquire(at *admission, h sandbox.Holder, of evictable, holder **connHolder) (ok bool) {
	p.mu.Lock()
	s := p.holderLocked(h)
	*holder = s
	var evicted *admission
	if !s.mayHold(p.most - p.open) {
		if evicted = s.first; evicted == nil {
			p.mu.Unlock()
			return false
		}
		p.releaseLocked(evicted)
		evicted.evicted = true
	}
	p.open++
	s.count(1)
	at.holder, at.owner = s, of
	if !s.isSandbox {
		s.append(at)
	}
	p.mu.Unlock()
	if evicted != nil {
		evicted.owner.evict()
	}
	return true
}

// reserve counts a connection that no other one displaces. releaseHeld undoes it.
func (p *connQuota) reserve(h sandbox.Holder) (s *connHolder, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.holderLocked(h); !s.mayHold(p.most - p.open) {
		return s, false
	}
	p.open++
	s.count(1)
	return s, true
}

// move counts what reserve gave with h, and reports whether h may have it.
func (p *connQuota) move(from *connHolder, h sandbox.Holder) (s *connHolder, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.holderLocked(h); s == from {
		return s, true
	}
	if !s.mayHold(p.most - p.open + 1) { // without this one
		return from, false
	}
	from.count(-1)
	s.count(1)
	return s, true
}

// assign counts an admission with the sandbox of holder that turned out to have the connection. It returns false if the
// admission was evicted, or if that sandbox has used up its quota.
func (p *connQuota) assign(at *admission, holder, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case at.evicted:
		return false
	case at.holder == nil || at.holder.isSandbox:
		return true
	}
	s := p.sandboxLocked(holder, name)
	if !s.mayHold(p.most - p.open + 1) { // without this one
		return false
	}
	at.holder.remove(at)
	at.holder.count(-1)
	s.count(1)
	at.holder = s
	return true
}

// handOver moves an admission from one value to another with a new owner. It returns false if from was
// evicted.
func (p *connQuota) handOver(from, to *admission, of evictable) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if from.evicted {
		return false
	}
	to.holder, to.owner = from.holder, of
	if s := from.holder; s != nil && !s.isSandbox {
		s.remove(from)
		s.append(to)
	}
	from.holder = nil
	return true
}

// acquireBeside counts a connection twice for as long as it changes hands. to is not evictable until [connQuota.enlist]; if
// from has no admission any more, to counts as evicted.
func (p *connQuota) acquireBeside(from, to *admission) *connHolder {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to.evicted = from.holder == nil; to.evicted {
		return &connHolder{server: p.server}
	}
	to.holder = from.holder
	p.open++
	to.holder.count(1)
	return to.holder
}

// enlist makes of, which has an admission of acquireBeside, evictable.
func (p *connQuota) enlist(at *admission, of evictable) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at.owner = of; at.holder != nil && !at.holder.isSandbox {
		at.holder.append(at)
	}
}

// release ends an admission, if it has not ended.
func (p *connQuota) release(at *admission) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releaseLocked(at)
}

// releaseHeld ends an admission of s whose other fields are gone.
func (p *connQuota) releaseHeld(s *connHolder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	s.count(-1)
}

// releaseLocked is release where p.mu is held.
func (p *connQuota) releaseLocked(at *admission) {
	s := at.holder
	if s == nil {
		return
	}
	if !s.isSandbox {
		s.remove(at)
	}
	p.open--
	s.count(-1)
	at.holder = nil
}

// admitted reports whether an admission stands: it was given, and has been neither given back
// nor lost.
func (p *connQuota) admitted(at *admission) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return at.holder != nil
}

// count is how many connections are open.
func (p *connQuota) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (s *connHolder) append(at *admission) {
	at.prev = s.last
	if s.last == nil {
		s.first = at
	} else {
		s.last.next = at
	}
	s.last = at
}

// remove undoes append, if at was appended.
func (s *connHolder) remove(at *admission) {
	if at.prev == nil && s.first != at {
		return
	}
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
