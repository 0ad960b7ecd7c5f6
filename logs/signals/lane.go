package signals

import (
	"math"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
)

// A lane is what one program did with one host: what is ordinary there is told by the
// host, since the interface of a code host takes less than its repositories do.
type lane struct {
	since   int64 // the first and
	till    int64 // the last by their place in the log, and
	began   int64 // the first by its place among those of the sandbox
	n       int64 // connections and requests that were allowed
	up      int64 // of those that do not mostly send
	down    int64
	uploads *traffic // that mostly send; nil for none
	heads   int64    // bytes of uploads that are requests without a body
	slow    *slow    // uploads that go up alone, in minutes; nil for none
	all     timeline // all flows
	hurried int64    // bytes of uploads soon after something else was denied
	when    hours    // of uploads
	train   train    // as it was
	judged  int64    // with so many flows
}

// maxLanes are the hosts of a site that are told apart. The others are one.
const maxLanes = 12

// slow is flows that go up alone, for minutes, and slower than lines are.
type slow struct {
	n, up, down int64
	took        time.Duration
}

const (
	slowFlow = 5 * time.Minute
	slowLine = 32 << 10 // bytes a second
)

func isSlow(r *egress.Record, of load) bool {
	took := time.Duration(r.Duration) * time.Millisecond
	return took >= slowFlow && of.up > oneWay*of.down && float64(of.up) < slowLine*took.Seconds()
}

func (s *slow) merge(o *slow) {
	s.n, s.up, s.down, s.took = s.n+o.n, s.up+o.up, s.down+o.down, s.took+o.took
}

func (s *site) lane(host string, place, own int64) *lane {
	if l := s.lanes[host]; l != nil {
		return l
	}
	if s.lanes == nil {
		s.lanes = map[string]*lane{}
	}
	if len(s.lanes) >= maxLanes {
		host = Beyond
	}
	l := s.lanes[host]
	if l == nil {
		l = &lane{since: place, began: own}
		s.lanes[strings.Clone(host)] = l
	}
	return l
}

// add takes in a flow that was allowed, and hurried is whether something else was denied just before.
func (l *lane) add(r *egress.Record, of load, place int64, hurried bool) {
	l.n++
	l.till = place
	l.all.add(r.Time.Unix())
	if !of.sends() {
		l.up += of.up
		l.down += of.down
		return
	}
	if l.uploads == nil {
		l.uploads = new(traffic)
	}
	l.uploads.add(r, of.up, place)
	l.when.add(r.Time, 1)
	if r.HTTP != nil && !writes(r) {
		l.heads += of.up
	}
	if isSlow(r, of) {
		if l.slow == nil {
			l.slow = new(slow)
		}
		l.slow.merge(&slow{1, of.up, of.down, time.Duration(r.Duration) * time.Millisecond})
	}
	if hurried {
		l.hurried += of.up
	}
}

func (l *lane) merge(o *lane) {
	if l.n == 0 || o.since < l.since {
		l.since, l.began = o.since, o.began
	}
	l.till = max(l.till, o.till)
	l.n, l.up, l.down = l.n+o.n, l.up+o.up, l.down+o.down
	l.heads, l.hurried = l.heads+o.heads, l.hurried+o.hurried
	if o.slow != nil {
		if l.slow == nil {
			l.slow = new(slow)
		}
		l.slow.merge(o.slow)
	}
	l.all.merge(&o.all)
	l.when.merge(&o.when)
	if o.uploads == nil {
		return
	}
	if l.uploads == nil {
		l.uploads = new(traffic)
	}
	l.uploads.merge(o.uploads)
}

// sizes is how often flows have sent how much: two classes for each doubling.
type sizes [sizeClasses]uint32

const (
	sizeClasses  = 44
	leastSize    = smallUpload / 2
	perDoubling  = 2
	leastSpread  = 0.8 // natural logarithms: what programs send differs by more than a factor of two
	leastHistory = 8   // fewer say nothing about what is usual
)

func classOf(n int64) int {
	if n <= leastSize {
		return 0
	}
	return min(sizeClasses-1, int(perDoubling*math.Log2(float64(n)/leastSize)))
}

// sizeAt is the least size of a class, in natural logarithms.
func sizeAt(class int) float64 {
	return math.Log(leastSize) + float64(class)*math.Ln2/perDoubling
}

func (s *sizes) add(n int64) { s[classOf(n)]++ }

func (s *sizes) merge(o *sizes) {
	for i, n := range o {
		s[i] += n
	}
}

// without is s less what is in o, which is a part of it.
func (s sizes) without(o *sizes) sizes {
	for i, n := range o {
		s[i] -= min(s[i], n)
	}
	return s
}

func (s *sizes) count() (n int64) {
	for _, c := range s {
		n += int64(c)
	}
	return n
}

// quantile is the size that a part of the flows does not reach, in natural logarithms.
func (s *sizes) quantile(part float64) float64 {
	rest := part * float64(s.count())
	for i, c := range s {
		if rest -= float64(c); rest < 0 {
			return sizeAt(i) + math.Ln2/perDoubling*(1+rest/float64(c))
		}
	}
	return sizeAt(sizeClasses)
}

// atLeast is how many flows have sent what those of a class do, or more.
func (s *sizes) atLeast(class int) (n int64) {
	for _, c := range s[class:] {
		n += int64(c)
	}
	return n
}

// A usual is what sizes are ordinarily: their middle, and how far they spread, by their
// logarithms. It is taken from quantiles, which a few that are far off do not move.
type usual struct{ middle, spread float64 }

func (s *sizes) usual(others bool) usual {
	middle := s.quantile(0.5)
	spread := max(leastSpread, (middle-s.quantile(0.1))/1.28, (s.quantile(0.8)-middle)/0.84)
	if others { // of which what is judged is no part
		spread = max(spread, (s.quantile(0.95)-middle)/1.64)
	}
	return usual{middle, spread}
}

// tail is the part of sizes that is expected to be at or above one: lognormal in the middle, and
// beyond what one in ten is a power law, which has more that is large.
func (u usual) tail(size float64) float64 {
	z := (size - u.middle) / u.spread
	if z < 1.28 {
		return 0.5 * math.Erfc(z/math.Sqrt2)
	}
	return 0.1 * math.Exp(-2*(z-1.28))
}

// surplus is the evidence, in nats, that there are more large ones in own than what is usual lets
// expect, and how many of own, from which class on, have it: the probability of so many is that of
// Poisson, and the best of several thresholds counts for less than one that is given.
func surplus(own *sizes, u usual) (nats float64, from int) {
	n := float64(own.count())
	tried := 0
	for class := range sizeClasses {
		k := float64(own.atLeast(class))
		if k == 0 || sizeAt(class) < u.middle+1.28*u.spread {
			continue
		}
		tried++
		expected := n * u.tail(sizeAt(class))
		if k <= expected {
			continue
		}
		if e := k*math.Log(k/expected) - k + expected; e > nats {
			nats, from = e, class
		}
	}
	return max(0, nats-math.Log(float64(max(1, tried)))), from
}

// above is how many there are from a class on, and about how many bytes these are.
func (s *sizes) above(class int) (n int64, up float64) {
	for i, c := range s[class:] {
		n += int64(c)
		up += float64(c) * math.Exp(sizeAt(class+i)+math.Ln2/perDoubling/2)
	}
	return n, up
}

// laneOf is the host under which lanes are kept: stores that are numbered are one.
func laneOf(host string) string {
	if isStore(host) {
		return family(host)
	}
	return host
}
