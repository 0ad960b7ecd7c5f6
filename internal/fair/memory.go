package fair

import (
	"cmp"
	"sync"
)

// A MemoryQuota bounds the memory that one holder can have egressd hold for it: a sandbox that takes all
// of its flows must not take the machine. A template is one holder, however many sandboxes it has. One of these holds at
// most as many bytes as its template has left. A MemoryQuota is safe for concurrent use.
type MemoryQuota struct {
	mu        sync.Mutex // guards what follows, and what is not final of all Reservations
	most      int64      // bytes of one holder
	held      map[string]int64
	sandboxes map[sandboxOf]int64 // of templates
}

// A sandboxOf is a sandbox of a template.
type sandboxOf struct{ template, sandbox string }

// A Reservation is the memory that one connection or body has reserved. Its last user frees it with Release.
type Reservation struct {
	quota   *MemoryQuota // final
	holder  string       // final
	sandbox string       // final
	held    int64
	users   int
}

// SetDefault gives each holder so much, unless that was said before.
func (r *MemoryQuota) SetDefault(most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = cmp.Or(r.most, most)
}

// SetMost sets how many bytes one holder may hold.
func (r *MemoryQuota) SetMost(most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = most
}

// Held returns how many bytes are held, and how many holders hold any.
func (r *MemoryQuota) Held() (bytes int64, holders int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.held {
		bytes += n
	}
	return bytes, len(r.held)
}

// Reserve returns one of nothing yet, for a sandbox of holder.
func (r *MemoryQuota) Reserve(holder, sandbox string) *Reservation {
	return &Reservation{quota: r, holder: holder, sandbox: sandbox, users: 1}
}

// Beside returns one of nothing yet, for the sandbox of l.
func (l *Reservation) Beside() *Reservation { return l.quota.Reserve(l.holder, l.sandbox) }

// leftLocked returns how many bytes the reservation may grow by. l.quota.mu is held.
func (l *Reservation) leftLocked() int64 {
	left := l.quota.most - l.quota.held[l.holder]
	if l.holder != l.sandbox { // it may hold what its template has left, and shares that with others
		left = min(left, left-l.quota.sandboxes[sandboxOf{l.holder, l.sandbox}])
	}
	return left
}

// Grow reserves n more bytes. It returns false if the sandbox has not so many left, or if the reservation was
// released.
func (l *Reservation) Grow(n int64) bool {
	l.quota.mu.Lock()
	defer l.quota.mu.Unlock()
	if l.users == 0 || n > l.leftLocked() {
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
	n := max(least, min(most, l.leftLocked()/8))
	l.addLocked(n)
	return n
}

// addLocked is called with l.quota.mu held.
func (l *Reservation) addLocked(n int64) {
	if l.quota.held == nil {
		l.quota.held, l.quota.sandboxes = map[string]int64{}, map[sandboxOf]int64{}
	}
	count(l.quota.held, l.holder, n)
	if l.holder != l.sandbox {
		count(l.quota.sandboxes, sandboxOf{l.holder, l.sandbox}, n)
	}
	l.held += n
}

// count adds n to a number, and removes it from the map if nothing is left.
func count[K comparable](of map[K]int64, key K, n int64) {
	if of[key] += n; of[key] == 0 {
		delete(of, key)
	}
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

// Clear frees the reserved bytes; the user may reserve more later.
func (l *Reservation) Clear() {
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
	if l.held != 0 {
		l.addLocked(-l.held)
	}
}
