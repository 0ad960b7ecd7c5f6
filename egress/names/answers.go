package names

import (
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	maxAddresses  = 16 << 10        // that are bound in one sandbox
	sweepInterval = time.Second     // between two searches for bindings that have ended
	useDelay      = 5 * time.Second // how much longer than its TTL an answer counts: a client uses it after it came
)

// Answers binds addresses to names by the answers that each sandbox got, so that a connection to an address can be
// taken for one to the name. Its zero value is empty; it is safe for concurrent use.
type Answers struct{ table[answers] }

// Bind notes an answer: in the sandbox, name has these addresses for as long as ttl.
func (a *Answers) Bind(sandbox, name string, addrs []netip.Addr, ttl time.Duration) {
	one := a.add(sandbox)
	if one == nil {
		return
	}
	now := time.Now()
	for _, addr := range addrs {
		one.bind(addr.Unmap(), name, now, now.Add(ttl+useDelay))
	}
}

// Name returns the one name that addr is bound to in the sandbox, or "".
func (a *Answers) Name(sandbox string, addr netip.Addr) string {
	if one := a.find(sandbox); one != nil {
		return one.only(addr.Unmap(), time.Now())
	}
	return ""
}

// answers are the recent answers of one sandbox.
type answers struct {
	mu     sync.Mutex
	byAddr map[netip.Addr]*boundNames
	swept  time.Time
}

// boundNames are the two names of an address that are bound for longest. A third one would change nothing: with two,
// nobody knows which is meant.
type boundNames [2]struct {
	name  string
	until time.Time
}

func (n *boundNames) add(name string, until time.Time) {
	first, second := &n[0], &n[1]
	switch {
	case name == first.name:
		first.until = latest(first.until, until)
	case name == second.name:
		second.until = latest(second.until, until)
	case until.After(second.until):
		second.name, second.until = strings.Clone(name), until
	}
	if second.until.After(first.until) {
		*first, *second = *second, *first
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// bind binds addr to name. It does nothing if too many addresses are bound.
func (a *answers) bind(addr netip.Addr, name string, now, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.byAddr[addr]
	if n == nil {
		if len(a.byAddr) >= maxAddresses && !a.sweep(now) {
			return
		}
		if a.byAddr == nil {
			a.byAddr = map[netip.Addr]*boundNames{}
		}
		n = new(boundNames)
		a.byAddr[addr] = n
	}
	n.add(name, until)
}

// sweep drops the bindings that have ended, and reports whether another address can be bound.
func (a *answers) sweep(now time.Time) bool {
	if now.Sub(a.swept) < sweepInterval {
		return false
	}
	a.swept = now
	for addr, n := range a.byAddr {
		if !n[0].until.After(now) {
			delete(a.byAddr, addr)
		}
	}
	return len(a.byAddr) < maxAddresses
}

// only returns the one name that addr may stand for now, or "".
func (a *answers) only(addr netip.Addr, now time.Time) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.byAddr[addr]
	if n == nil || !n[0].until.After(now) || n[1].until.After(now) {
		return ""
	}
	return n[0].name
}
