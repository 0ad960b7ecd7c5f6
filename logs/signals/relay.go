package signals

import (
	"math"
	"strings"

	"github.com/egressd/egressd/record"
)

// relays find what one sandbox sent to a place, another fetched there, and that other sent on to somewhere else.
type relays struct {
	left map[string]*waypoint // by destination: what sandboxes sent there
	came map[string]*waypoint // by sandbox: what it fetched that another sandbox had sent
}

// A waypoint keeps the last freights of a destination or a sandbox.
type waypoint struct {
	name string
	of   [trailLength]freight
	next int
	all  sizes // of all freights there ever were
}

// A freight is something that was sent, or fetched.
type freight struct {
	from string // the sandbox that had it first
	by   string // the destination where it lay
	at   int64  // seconds
	up   int64  // bytes
	on   string // the destination that it was last passed on to

	sent, fetched string // ids of the requests that sent it there, and that fetched it
}

const (
	trailLength  = 64
	leastFreight = 64 << 10 // bytes; smaller freights are alike by chance
	freightKept  = 24 * 3600
	relayMost    = 4.0  // nats
	relaySupply  = 0.5  // nats, if it is of a sandbox that supplies the place
	suppliedPart = 0.5  // of what speaks against a lane that sends on what such a sandbox left: a deployment does that
	supplyPart   = 0.25 // part of the uploads to a place, of who supplies it
	relayUsual   = 0.4  // part of the uploads to a host; who passes on that many all through the log does that
)

// codings are how many times as long a freight is when it is passed on: as it is, or in base64.
var codings = []float64{1, 4.0 / 3}

// apart returns by how many bytes two copies of a freight may differ, because of heads and of frames.
func apart(bytes float64) float64 { return 2<<10 + bytes/512 }

// find returns the last freight that bytes may be a copy of.
func (t *waypoint) find(bytes, at int64, codings []float64, fits func(*freight) bool) *freight {
	if t == nil {
		return nil
	}
	for i := range min(t.next, trailLength) {
		p := &t.of[(t.next-1-i)%trailLength]
		if at < p.at || at-p.at > freightKept || !fits(p) {
			continue
		}
		for _, coded := range codings {
			if math.Abs(float64(bytes)-coded*float64(p.up)) < apart(float64(p.up)) {
				return p
			}
		}
	}
	return nil
}

func (t *waypoint) add(p freight) {
	t.of[t.next%trailLength] = p
	t.next++
	t.all.add(p.up)
}

// kept returns the waypoint of key. All beyond the bound share one.
func kept(all *map[string]*waypoint, key string) *waypoint {
	if *all == nil {
		*all = map[string]*waypoint{}
	}
	t := (*all)[key]
	if t == nil && len(*all) >= maxPrograms {
		key = Beyond
		t = (*all)[key]
	}
	if t == nil {
		t = &waypoint{name: strings.Clone(key)}
		(*all)[t.name] = t
	}
	return t
}

// add notes an allowed flow to a destination. It returns the freight that the flow passes on, or nil.
func (v *relays) add(r *record.Record, to string, of load) *freight {
	sandbox, seconds := r.Sandbox, r.Time.Unix()
	if of.down >= leastFreight {
		p := v.left[to].find(of.down, seconds, codings[:1], func(p *freight) bool { return p.from != sandbox })
		if p != nil {
			kept(&v.came, sandbox).add(freight{from: p.from, by: p.by, at: seconds, up: of.down, sent: p.sent, fetched: strings.Clone(r.Flow)})
		}
	}
	if !of.sends() || of.up < leastFreight {
		return nil
	}
	p := v.came[sandbox].find(of.up, seconds, codings, func(p *freight) bool { return p.by != to && p.on != to })
	there := kept(&v.left, to)
	there.add(freight{from: kept(&v.came, sandbox).name, by: there.name, at: seconds, up: of.up, sent: strings.Clone(r.Flow)})
	if p != nil {
		p.on = there.name
	}
	return p
}

// relayed sums the uploads of a lane that pass something on.
type relayed struct {
	n, up int64
	last  freight
}

func (p *relayed) add(up int64, from *freight) {
	p.n, p.up, p.last = p.n+1, p.up+up, *from
}

func (p *relayed) merge(o *relayed) {
	p.n, p.up, p.last = p.n+o.n, p.up+o.up, o.last
}

// byChance returns how many of the freights that came to a sandbox the lane's uploads have the length of by chance.
func (l *lane) byChance(came *waypoint) (n float64) {
	if came == nil {
		return 0
	}
	days := 1 + l.uploads.last.Sub(l.uploads.first).Hours()/24
	for class, freights := range came.all {
		if freights == 0 {
			continue
		}
		bytes := math.Exp(sizeAt(class))
		width := bytes * (math.Exp2(1.0/perDoubling) - 1)
		n += float64(freights) * -math.Expm1(-float64(l.uploads.of[class])/days*2*apart(bytes)/width*float64(len(codings)))
	}
	return n
}

// passesOn scores what came from another sandbox and went out.
func (f *Finder) passesOn(key siteKey, host string, l *lane) Signal {
	p := l.relayed
	if p == nil {
		return Signal{}
	}
	k, chance := float64(p.n), l.byChance(f.relays.came[key.sandbox])+0.1
	if k <= chance {
		return Signal{}
	}
	most := relayMost
	if f.supplies(p.last.from, p.last.by) {
		most = relaySupply
	}
	var e evidence
	e.add(min(most, k*math.Log(k/chance)-k+chance), "of the length that %s had sent to %s, where this sandbox fetched it", p.last.from, p.last.by)
	f.hour(&e, key, l)
	if k >= relayUsual*float64(l.uploads.n) && !f.isLate(key, l) {
		e.discount(f.habitual(l), "it passes on much of what it sends there, all through the log")
	}
	s := uploadSignal(float64(p.up), &e, priorPart, "%s up in %d flows that pass something on", size(p.up), p.n)
	s.From = &Leg{p.last.from, p.last.by, p.last.sent, p.last.fetched}
	return s
}

// supplies reports whether the sandbox makes many of the uploads to a destination. A pipeline does, which leaves what others fetch.
func (f *Finder) supplies(sandbox, destination string) bool {
	p := f.pools.destinations[destination]
	if p == nil {
		return false
	}
	var own int64
	for _, s := range p.senders {
		if s.sandbox == sandbox {
			own += s.of.count()
		}
	}
	return float64(own) >= supplyPart*float64(p.sent.count())
}
