package proxy

import (
	"cmp"
	"sync"
)

// A room bounds the memory that one sandbox can have egressd hold for it: one that takes all
// of its flows must not take the machine. It is safe for concurrent use.
type room struct {
	mu   sync.Mutex // guards what follows, and all in leases that is not final
	most int64      // bytes of one sandbox
	held map[string]int64
}

// What one sandbox may have held for it. Beyond the first, connections still get the
// least that HTTP/2 can do with (leastWindow); beyond the second, a body is refused.
const (
	windowsOfSandbox = 256 << 20
	packedOfSandbox  = 128 << 20
)

// A lease is what one connection or body has of a room. It is given back once end was called
// for it, and for each share.
type lease struct {
	of      *room  // final
	sandbox string // final
	held    int64
	users   int
}

// fill gives each sandbox so much, unless that was said before.
func (r *room) fill(most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = cmp.Or(r.most, most)
}

// lease returns one of nothing yet.
func (r *room) lease(sandbox string) *lease { return &lease{of: r, sandbox: sandbox, users: 1} }

// more takes n bytes, or reports that there are not so many left, or that it has ended.
func (l *lease) more(n int64) bool {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.users == 0 || l.of.held[l.sandbox]+n > l.of.most {
		return false
	}
	l.take(n)
	return true
}

// part takes an eighth of what is left, but at most most and at least least, and returns what
// it has taken. It is called once.
func (l *lease) part(most, least int64) int64 {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	n := max(least, min(most, (l.of.most-l.of.held[l.sandbox])/8))
	l.take(n)
	return n
}

// take is called with l.of.mu held.
func (l *lease) take(n int64) {
	if l.of.held == nil {
		l.of.held = map[string]int64{}
	}
	l.of.held[l.sandbox] += n
	l.held += n
}

// share has the lease wait for one more end, or reports that it has ended.
func (l *lease) share() bool {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.users == 0 {
		return false
	}
	l.users++
	return true
}

// free gives back what the lease has; it may take more later.
func (l *lease) free() {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	l.giveBack()
}

// end gives the lease back, the last time. A nil lease has nothing to give.
func (l *lease) end() {
	if l == nil {
		return
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.users--; l.users == 0 {
		l.giveBack()
	}
}

// giveBack is called with l.of.mu held.
func (l *lease) giveBack() {
	left := l.of.held[l.sandbox] - l.held
	if l.held = 0; left > 0 {
		l.of.held[l.sandbox] = left
	} else {
		delete(l.of.held, l.sandbox)
	}
}
