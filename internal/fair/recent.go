package fair

import (
	"net/netip"
	"sync"
	"time"
)

// Recent bounds how many of something are taken for each place, such as local ports for connections to an address. Each comes back by
// itself after a minute. A holder takes another one only while it has taken fewer than are left. Each sandbox of a template, which is one
// holder, gets no more than the template could still take.
//
// The zero value counts nothing. It is safe for concurrent use.
type Recent struct {
	Most int // for one place in a minute, of all holders; 0: any number

	mu         sync.Mutex // guards what follows
	tick       int64      // the newest
	ticks      [recentTicks]map[*recentUse]int
	uses       map[useKey]*recentUse
	toward     map[netip.AddrPort]int
	perSandbox map[string]int // how many there are in uses, by sandbox or template
}

type useKey struct {
	who string         // a sandbox or a template
	to  netip.AddrPort // the zero value stands for all that are too many to be told apart
}

type recentUse struct {
	useKey
	n      int
	within bool // the connections count for a template, too
}

const (
	recentTick     = 4 * time.Second
	recentTicks    = 17   // a port is missed for 64 to 68 seconds: TIME-WAIT takes 60
	perSandboxMost = 4096 // of one sandbox or template, that are told apart
)

// Take takes one for a place, at a time of the caller's clock, and reports whether the sandbox may have one more.
// holder is the template of the sandbox, or the sandbox itself.
func (p *Recent) Take(holder, sandbox string, to netip.AddrPort, at time.Duration) bool {
	if p.Most == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advance(int64(at / recentTick))
	u := p.use(useKey{holder, to})
	free := p.Most - p.toward[u.to]
	var own *recentUse
	ok := mayTake(u.n, free)
	if holder != sandbox {
		own = p.use(useKey{sandbox, to})
		own.within = true
		ok = mayTake(own.n, couldTake(u.n, free))
	}
	for _, one := range []*recentUse{u, own} {
		switch {
		case one == nil:
		case ok:
			p.count(one)
		default:
			p.tidy(one)
		}
	}
	return ok
}

// count counts one more of u. p.mu is held.
func (p *Recent) count(u *recentUse) {
	u.n++
	if !u.within {
		p.toward[u.to]++
	}
	by := &p.ticks[p.tick%recentTicks]
	if *by == nil {
		*by = map[*recentUse]int{}
	}
	(*by)[u]++
}

// use returns the counter of key. A sandbox with too many counters shares one for its other destinations. p.mu is held.
func (p *Recent) use(key useKey) *recentUse {
	if p.uses == nil {
		p.uses, p.toward, p.perSandbox = map[useKey]*recentUse{}, map[netip.AddrPort]int{}, map[string]int{}
	}
	u := p.uses[key]
	if u == nil && p.perSandbox[key.who] >= perSandboxMost {
		key.to = netip.AddrPort{}
		u = p.uses[key]
	}
	if u == nil {
		u = &recentUse{useKey: key}
		p.uses[key] = u
		p.perSandbox[key.who]++
	}
	return u
}

// advance forgets what was begun more than a minute before. p.mu is held.
func (p *Recent) advance(tick int64) {
	for ; p.tick < tick; p.tick++ {
		if tick-p.tick > recentTicks { // all of it is too old
			p.tick = tick - recentTicks
		}
		oldest := &p.ticks[(p.tick+1)%recentTicks]
		for u, n := range *oldest {
			u.n -= n
			if !u.within {
				if p.toward[u.to] -= n; p.toward[u.to] == 0 {
					delete(p.toward, u.to)
				}
			}
			p.tidy(u)
		}
		*oldest = nil
	}
}

// tidy forgets a count of nothing. p.mu is held.
func (p *Recent) tidy(u *recentUse) {
	if u.n > 0 {
		return
	}
	delete(p.uses, u.useKey)
	if p.perSandbox[u.who]--; p.perSandbox[u.who] == 0 {
		delete(p.perSandbox, u.who)
	}
}
