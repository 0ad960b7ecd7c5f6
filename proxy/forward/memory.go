package forward

import (
	"cmp"
	"sync"
)

// A MemoryQuota bounds the memory that one sandbox can have egressd hold for it: one that takes all
// of its flows must not take the machine. It is safe for concurrent use.
type MemoryQuota struct {
	mu   sync.Mutex // guards what follows, and what is not final of all Reservations
	most int64      // bytes of one sandbox
	held map[string]int64
}

// bodyMemoryOfSandbox is how many bytes of bodies may be held for one sandbox. A body beyond it is refused.
const bodyMemoryOfSandbox = 128 << 20

// A Reservation is the memory that one connection or body has reserved. Its last user frees it with Release.
type Reservation struct {
	quota   *MemoryQuota // final
	sandbox string       // final
	held    int64
	users   int
}

// SetDefault gives each sandbox so much, unless that was said before.
func (r *MemoryQuota) SetDefault(most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = cmp.Or(r.most, most)
}

// SetMost sets how many bytes one sandbox may hold.
func (r *MemoryQuota) SetMost(most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = most
}

// Held returns how many bytes all sandboxes hold, and how many sandboxes hold any.
func (r *MemoryQuota) Held() (bytes int64, sandboxes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.held {
		bytes += n
	}
	return bytes, len(r.held)
}

// Reserve returns one of nothing yet.
func (r *MemoryQuota) Reserve(sandbox string) *Reservation {
	return &Reservation{quota: r, sandbox: sandbox, users: 1}
}

// grow reserves n more bytes. It returns false if the sandbox has not so many left, or if the reservation was
// released.
func (l *Reservation) grow(n int64) bool {
	l.quota.mu.Lock()
	defer l.quota.mu.Unlock()
	if l.users == 0 || l.quota.held[l.sandbox]+n > l.quota.most {
		return false
	}
	l.addLocked(n)
	return true
}

// GrowFair reserves one eighth of the bytes that the sandbox has left, clamped to [least, most]. It returns
// how many bytes it has reserved. Call it once.
func (l *Reservation) GrowFair(most, least int64) int64 {
	l.quota.mu.Lock()
	defer l.quota.mu.Unlock()
	n := max(least, min(most, (l.quota.most-l.quota.held[l.sandbox])/8))
	l.addLocked(n)
	return n
}

// addLocked is called with l.quota.mu held.
func (l *Reservation) addLocked(n int64) {
	if l.quota.held == nil {
		l.quota.held = map[string]int64{}
	}
	l.quota.held[l.sandbox] += n
	l.held += n
}

// Retain adds a user. It returns false if the reservation was freed.
func (l *Reservation) Retain() bool {
	l.quota.mu.Lock()
	defer l.quota.mu.Unlock()
	if l.users == 0 {
		return false
	}
	l.users++
	return true
}

// clear frees the reserved bytes; the user may reserve more later.
func (l *Reservation) clear() {
	l.quota.mu.Lock()
	defer l.quota.mu.Unlock()
	l.clearLocked()
}

// Release removes a user, and frees the reservation with the last one. A nil Reservation has nothing to free.
func (l *Reservation) Release() {
	if l == nil {
		return
	}
	l.quota.mu.Lock()
	defer l.quota.mu.Unlock()
	if l.users--; l.users == 0 {
		l.clearLocked()
	}
}

// clearLocked is called with l.quota.mu held.
func (l *Reservation) clearLocked() {
	left := l.quota.held[l.sandbox] - l.held
	if l.held = 0; left > 0 {
		l.quota.held[l.sandbox] = left
	} else {
		delete(l.quota.held, l.sandbox)
	}
}
