package signals

import "math"

// A pool is what several lanes did together: those of a host, of a program, or of a program
// with a host.
type pool struct {
	since    int64
	n        int64 // connections and requests
	up, down int64
	sent     sizes // of those that mostly send
	slow     int64 // flows
	senders  []sender
}

// A sender is a sandbox that sends to a host by a program.
type sender struct {
	sandbox string
	up      int64
	of      *sizes
}

const maxSenders = 16

type pairKey struct{ program, host string }

// pools are all lanes, added up when attempts are judged.
type pools struct {
	hosts        map[string]*pool
	programs     map[string]*pool
	pairs        map[pairKey]*pool
	destinations map[string]*pool
}

// sum adds up what hosts, programs and destinations are used for, as it is now.
func (f *Finder) sum() {
	f.pools = pools{map[string]*pool{}, map[string]*pool{}, map[pairKey]*pool{}, map[string]*pool{}}
	for key, s := range f.sites {
		for host, l := range s.lanes {
			poolOf(f.pools.hosts, host).add(key.sandbox, l)
			poolOf(f.pools.programs, key.program).add(key.sandbox, l)
			poolOf(f.pools.pairs, pairKey{key.program, host}).add(key.sandbox, l)
			poolOf(f.pools.destinations, key.destination).add(key.sandbox, l)
		}
	}
}

func poolOf[K comparable](of map[K]*pool, key K) *pool {
	p := of[key]
	if p == nil {
		p = &pool{since: -1}
		of[key] = p
	}
	return p
}

func (p *pool) add(sandbox string, l *lane) {
	if p.since < 0 || l.since < p.since {
		p.since = l.since
	}
	p.n, p.up, p.down = p.n+l.n, p.up+l.up, p.down+l.down
	if l.uploads == nil {
		return
	}
	p.up, p.down = p.up+l.uploads.up, p.down+l.uploads.down
	if l.slow != nil {
		p.slow += l.slow.n
	}
	p.sent.merge(&l.uploads.of)
	if len(p.senders) < maxSenders {
		p.senders = append(p.senders, sender{sandbox, l.uploads.up, &l.uploads.of})
	}
}

// peers is what the lanes of a pool have sent, without one of them, and of that which has sent most no more flows than
// each of the others: what one does, a thief for one, is not what is usual.
func (p *pool) peers(own *sizes) sizes {
	all := p.sent.without(own)
	var most *sizes
	n := 0
	for _, s := range p.senders {
		if s.of == own {
			continue
		}
		if n++; most == nil || s.of.count() > most.count() {
			most = s.of
		}
	}
	if n < 2 {
		return all
	}
	rest := all.without(most)
	if part := float64(rest.count()) / float64(n-1) / float64(most.count()); part < 1 {
		for i, n := range most {
			rest[i] += uint32(math.Round(part * float64(n)))
		}
		return rest
	}
	return all
}

// othersThatSend are the other sandboxes in a pool that send a tenth of up at least.
func (p *pool) othersThatSend(sandbox string, up int64) (n int) {
	for _, s := range p.senders {
		if s.sandbox != sandbox && s.up >= up/10 {
			n++
		}
	}
	return n
}
