package egress

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/sandbox"
)

const (
	answersMost  = 16 << 10        // addresses that are remembered of one sandbox
	answersSwept = time.Second     // how often room is looked for among them
	answerUsed   = 5 * time.Second // how much longer than its life an answer counts: it has to be used first
)

// answers are what one sandbox was told of names lately: what it may mean by an
// address.
type answers struct {
	mu     sync.Mutex
	byAddr map[netip.Addr]*named
	swept  time.Time
}

// named are the two names of an address that are told of for longest. There is no
// need of a third: with two, nobody knows which is meant.
type named [2]struct {
	name  string
	until time.Time
}

func (n *named) add(name string, until time.Time) {
	first, second := &n[0], &n[1]
	switch {
	case name == first.name:
		first.until = laterOf(first.until, until)
	case name == second.name:
		second.until = laterOf(second.until, until)
	case until.After(second.until):
		second.name, second.until = strings.Clone(name), until
	}
	if second.until.After(first.until) {
		*first, *second = *second, *first
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// add notes that name was told to have addr. Where there is no room, it is not
// noted.
func (a *answers) add(addr netip.Addr, name string, now, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.byAddr[addr]
	if n == nil {
		if len(a.byAddr) >= answersMost && !a.sweep(now) {
			return
		}
		if a.byAddr == nil {
			a.byAddr = map[netip.Addr]*named{}
		}
		n = new(named)
		a.byAddr[addr] = n
	}
	n.add(name, until)
}

// sweep forgets what nobody may use any more, and reports whether there is room.
func (a *answers) sweep(now time.Time) bool {
	if now.Sub(a.swept) < answersSwept {
		return false
	}
	a.swept = now
	for addr, n := range a.byAddr {
		if !n[0].until.After(now) {
			delete(a.byAddr, addr)
		}
	}
	return len(a.byAddr) < answersMost
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

// answersOf returns what a sandbox was told, or nil where there is no room for one
// more sandbox.
func (g *Gate) answersOf(sandbox string) *answers {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.told[sandbox]
	if a == nil && len(g.told) < sandboxesMost {
		if g.told == nil {
			g.told = map[string]*answers{}
		}
		a = new(answers)
		g.told[sandbox] = a
	}
	return a
}

// Told notes that the sandbox was told that its question's name has these addresses
// for as long as life, for [Gate.Answered].
func (i *Inquiry) Told(addrs []netip.Addr, life time.Duration) {
	g, r := i.flow.gate, i.flow.request
	if !g.config.Answers || r.DNS == nil || len(addrs) == 0 {
		return
	}
	a := g.answersOf(r.Sandbox.Name)
	if a == nil {
		return
	}
	now := time.Now()
	for _, addr := range addrs {
		a.add(addr.Unmap(), r.DNS.Name, now, now.Add(life+answerUsed))
	}
}

// Answered returns the name that peer's sandbox was told lately to have this
// address, where it is the only one. It is what the sandbox probably means, and
// permits nothing: it has to be decided, and resolved, like any other name.
func (g *Gate) Answered(peer sandbox.Peer, addr netip.Addr) string {
	if !g.config.Answers {
		return ""
	}
	who, err := g.config.Sandboxes.Identify(peer)
	if err != nil {
		return ""
	}
	g.mu.Lock()
	a := g.told[who.Name]
	g.mu.Unlock()
	if a == nil {
		return ""
	}
	return a.only(addr.Unmap(), time.Now())
}
