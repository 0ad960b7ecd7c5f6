package fair

import "sync"

// Connections bounds the connections that may be open at a time. All sandboxes of a template are one holder. S tells sources
// apart.
//
// Some sandboxes are only known by their credentials. Before those arrive, a connection counts with its source
// address, which other sandboxes may share. If that address has used up its part, its oldest unproven
// connection is evicted.
//
// It is safe for concurrent use. The zero value admits nothing.
type Connections[S comparable] struct {
	Most int

	mu      sync.Mutex // guards what follows, and all in ConnHolders and Admissions that is not final
	open    int
	holders map[connKey[S]]*ConnHolder
	swept   int // ConnHolders that were left when the empty ones were last removed
}

// A connKey is a sandbox or template, or else the source of connections.
type connKey[S comparable] struct {
	sandbox string
	source  S
}

// A ConnHolder is what one holder has.
type ConnHolder struct {
	isSandbox bool        // final: the holder is a sandbox
	template  *ConnHolder // final: of a sandbox of a template, or nil

	held        int        // of a template, what its sandboxes hold
	first, last *Admission // that may have to give way, the oldest first
}

// An Admission is that of one connection. Its zero value holds none.
type Admission struct {
	holder     *ConnHolder // nil: none
	evicted    bool        // it has given way
	owner      Evictable
	prev, next *Admission // of the holder
}

// Holder returns whom the connection counts with.
func (a *Admission) Holder() *ConnHolder { return a.holder }

// An Evictable is a connection that can be evicted. Evict may not wait.
type Evictable interface{ Evict() }

const sweptMost = 64

// holderLocked returns what a sandbox or template has, or what a source has if sandbox is "". p.mu is held.
func (p *Connections[S]) holderLocked(sandbox string, source S) *ConnHolder {
	key := connKey[S]{source: source}
	if sandbox != "" {
		key = connKey[S]{sandbox: sandbox}
	}
	if s := p.holders[key]; s != nil {
		return s
	}
	if p.holders == nil {
		p.holders = map[connKey[S]]*ConnHolder{}
	}
	if len(p.holders) > 2*p.swept+sweptMost {
		for other, s := range p.holders {
			if s.held == 0 {
				delete(p.holders, other)
			}
		}
		p.swept = len(p.holders)
	}
	s := &ConnHolder{isSandbox: sandbox != ""}
	p.holders[key] = s
	return s
}

// sandboxLocked is holderLocked for a sandbox that counts with holder, which is the sandbox itself or its template.
func (p *Connections[S]) sandboxLocked(holder, sandbox string) *ConnHolder {
	var none S
	s := p.holderLocked(sandbox, none)
	if holder != sandbox && s.template == nil {
		s.template = p.holderLocked(holder, none)
		s.template.held += s.held
	}
	return s
}

// mayHold reports whether s may hold one more, where so many are free.
func (s *ConnHolder) mayHold(free int) bool {
	if s.template == nil {
		return mayTake(s.held, free)
	}
	return mayTake(s.held, couldTake(s.template.held, free))
}

// count adds n to what s holds.
func (s *ConnHolder) count(n int) {
	s.held += n
	if s.template != nil {
		s.template.held += n
	}
}

// Acquire admits a connection of a sandbox, or of a source if sandbox is "". It returns false if that holder has too many.
// Another connection of the source may have to give way.
func (p *Connections[S]) Acquire(at *Admission, sandbox string, source S, of Evictable) (ok bool) {
	p.mu.Lock()
	s := p.holderLocked(sandbox, source)
	var evicted *Admission
	if !s.mayHold(p.Most - p.open) {
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
		evicted.owner.Evict()
	}
	return true
}

// Move counts an admission with a sandbox, or with a source if sandbox is "", which turned out to have the connection. It
// returns false if the admission was evicted, or if that holder has used up its quota.
func (p *Connections[S]) Move(at *Admission, sandbox string, source S) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !at.evicted && (at.holder == nil || p.moveLocked(at, p.holderLocked(sandbox, source)))
}

// moveLocked is Move where p.mu is held and the admission stands.
func (p *Connections[S]) moveLocked(at *Admission, s *ConnHolder) bool {
	if s == at.holder {
		return true
	}
	if !s.mayHold(p.Most - p.open + 1) { // without this one
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

// Assign counts an admission with the sandbox of holder that turned out to have the connection. It returns false if the
// admission was evicted, or if that sandbox has used up its quota.
func (p *Connections[S]) Assign(at *Admission, holder, sandbox string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case at.evicted:
		return false
	case at.holder == nil || at.holder.isSandbox:
		return true
	}
	return p.moveLocked(at, p.sandboxLocked(holder, sandbox))
}

// Release ends an admission, if it has not ended.
func (p *Connections[S]) Release(at *Admission) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releaseLocked(at)
}

// ReleaseHeld ends an admission of s whose other fields are gone.
func (p *Connections[S]) ReleaseHeld(s *ConnHolder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	s.count(-1)
}

// releaseLocked is Release where p.mu is held.
func (p *Connections[S]) releaseLocked(at *Admission) {
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

// Held returns how many connections of a sandbox are open, or of a source if sandbox is "".
func (p *Connections[S]) Held(sandbox string, source S) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holderLocked(sandbox, source).held
}

// Count returns how many connections are open.
func (p *Connections[S]) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (s *ConnHolder) append(at *Admission) {
	at.prev = s.last
	if s.last == nil {
		s.first = at
	} else {
		s.last.next = at
	}
	s.last = at
}

// remove undoes append, if at was appended.
func (s *ConnHolder) remove(at *Admission) {
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
