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
	most int

	mu      sync.Mutex // guards what follows, and all in connHolders and admissions that is not final
	open    int
	holders map[sandbox.Holder]*connHolder
	swept   int // connHolders that were left when the empty ones were last removed
}

// A connHolder is what one holder has.
type connHolder struct {
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
	s := &connHolder{isSandbox: h.Sandbox != ""}
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
// else of h may have to give way.
func (p *connQuota) acquire(at *admission, h sandbox.Holder, of evictable) (ok bool) {
	p.mu.Lock()
	s := p.holderLocked(h)
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

// move counts an admission with h, which turned out to have the connection. It returns false if the admission was evicted,
// or if h has used up its quota.
func (p *connQuota) move(at *admission, h sandbox.Holder) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !at.evicted && (at.holder == nil || p.moveLocked(at, p.holderLocked(h)))
}

// moveLocked is move where p.mu is held and the admission stands.
func (p *connQuota) moveLocked(at *admission, s *connHolder) bool {
	if s == at.holder {
		return true
	}
	if !s.mayHold(p.most - p.open + 1) { // without this one
		return false
	}
	if !at.holder.isSandbox {
		at.holder.remove(at)
	}
	at.holder.count(-1)
	s.count(1)
	if at.holder = s; !s.isSandbox {
		s.append(at)
	}
	return true
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
	return p.moveLocked(at, p.sandboxLocked(holder, name))
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
