package signals

import (
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

// A lane holds the traffic of one program with one host. Lanes are kept by host because ordinary traffic
// differs by host: the API of a code host takes smaller uploads than its repositories.
type lane struct {
	since    int64 // index of the first flow among all flows
	till     int64 // index of the last flow among all flows
	firstOwn int64 // index of the first flow within the sandbox
	n        int64 // allowed connections and requests
	up       int64 // bytes of flows that are not uploads
	down     int64
	uploads  *traffic // flows that mostly send; nil for none
	heads    int64    // bytes of uploads that are requests without a body
	queries  int64    // of heads, those of which most is a query
	slow     *slow    // slow uploads; nil for none
	asked    *heads   // heads of requests without a body; nil for none
	relayed  *relayed // uploads that pass something on; nil for none
	all      timeline // all flows
	hurried  int64    // bytes of uploads shortly after a denial elsewhere
	when     hours    // hours of uploads
	train    train    // cached best train
	judged   int64    // value of n when train was computed
}

// maxLanes is the number of hosts of a site with a lane of their own. All others share one lane.
const maxLanes = 12

// slow sums uploads that take minutes and stay below the speed of any line.
type slow struct {
	n, up, down int64
	took        time.Duration
}

const (
	slowFlow = 5 * time.Minute
	slowLine = 32 << 10 // bytes per second
)

func isSlow(r *record.Record, of load) bool {
	took := time.Duration(r.Duration) * time.Millisecond
	return took >= slowFlow && of.up > oneWay*of.down && float64(of.up) < slowLine*took.Seconds()
}

func (s *slow) merge(o *slow) {
	s.n, s.up, s.down, s.took = s.n+o.n, s.up+o.up, s.down+o.down, s.took+o.took
}

func (s *site) lane(host string, index, ownIndex int64) *lane {
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
		l = &lane{since: index, firstOwn: ownIndex}
		s.lanes[strings.Clone(host)] = l
	}
	return l
}

// add counts an allowed flow. The flag hurried says that another destination was denied shortly before. The freight is what the
// flow passes on, or nil.
func (l *lane) add(seed uint64, r *record.Record, of load, index int64, hurried bool, from *freight) {
	l.n++
	l.till = index
	if isHead(r) {
		if l.asked == nil {
			l.asked = new(heads)
		}
		l.asked.add(seed, r)
	}
	l.all.add(r.Time.Unix())
	if !of.sends() {
		l.up += of.up
		l.down += of.down
		return
	}
	if l.uploads == nil {
		l.uploads = new(traffic)
	}
	l.uploads.add(r, of.up, index)
	l.when.add(r.Time, 1)
	if isHead(r) {
		l.heads += of.up
		if r.HTTP.QueryBytes > of.up/2 {
			l.queries += of.up
		}
	}
	if from != nil {
		if l.relayed == nil {
			l.relayed = new(relayed)
		}
		l.relayed.add(of.up, from)
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
		l.since, l.firstOwn = o.since, o.firstOwn
	}
	l.till = max(l.till, o.till)
	l.n, l.up, l.down = l.n+o.n, l.up+o.up, l.down+o.down
	l.heads, l.queries, l.hurried = l.heads+o.heads, l.queries+o.queries, l.hurried+o.hurried
	if o.asked != nil {
		if l.asked == nil {
			l.asked = new(heads)
		}
		l.asked.merge(o.asked)
	}
	if o.relayed != nil {
		if l.relayed == nil {
			l.relayed = new(relayed)
		}
		l.relayed.merge(o.relayed)
	}
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

// sizes counts flows by size, in two classes per doubling.
type sizes [sizeClasses]uint32

const (
	sizeClasses  = 44
	leastSize    = smallUpload / 2
	perDoubling  = 2
	leastSpread  = 0.8 // natural logarithm; ordinary sizes differ by more than a factor of two
	leastHistory = 8   // fewer flows do not show what is usual
)

func classOf(n int64) int {
	if n <= leastSize {
		return 0
	}
	return min(sizeClasses-1, int(perDoubling*math.Log2(float64(n)/leastSize)))
}

// sizeAt returns the lower bound of a class as natural logarithm.
func sizeAt(class int) float64 {
	return math.Log(leastSize) + float64(class)*math.Ln2/perDoubling
}

func (s *sizes) add(n int64) { s[classOf(n)]++ }

func (s *sizes) merge(o *sizes) {
	for i, n := range o {
		s[i] += n
	}
}

// without returns s minus o, which is part of s.
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

// quantile returns the size that the given part of the flows stays below, as natural logarithm.
func (s *sizes) quantile(part float64) float64 {
	rest := part * float64(s.count())
	for i, c := range s {
		if rest -= float64(c); rest < 0 {
			return sizeAt(i) + math.Ln2/perDoubling*(1+rest/float64(c))
		}
	}
	return sizeAt(sizeClasses)
}

// atLeast counts the flows in class and all larger classes.
func (s *sizes) atLeast(class int) (n int64) {
	for _, c := range s[class:] {
		n += int64(c)
	}
	return n
}

// A usual describes ordinary sizes by the median and spread of their logarithms. Both come from quantiles,
// which a few outliers do not move.
type usual struct{ middle, spread float64 }

func (s *sizes) usual(others bool) usual {
	middle := s.quantile(0.5)
	spread := max(leastSpread, (middle-s.quantile(0.1))/1.28, (s.quantile(0.8)-middle)/0.84)
	if others { // s excludes the flows under judgement
		spread = max(spread, (s.quantile(0.95)-middle)/1.64)
	}
	return usual{middle, spread}
}

// tail returns the expected share of flows of at least size. The distribution is lognormal, with a power
// law for the largest tenth, which allows more large flows.
func (u usual) tail(size float64) float64 {
	z := (size - u.middle) / u.spread
	if z < 1.28 {
		return 0.5 * math.Erfc(z/math.Sqrt2)
	}
	return 0.1 * math.Exp(-2*(z-1.28))
}

// surplus returns the evidence, in nats, that own holds more large flows than u predicts, and the class
// where these begin. The probability is that of Poisson. Each class tried as a threshold lowers the
// evidence.
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

// above returns the number of flows from class upwards and their approximate bytes.
func (s *sizes) above(class int) (n int64, up float64) {
	for i, c := range s[class:] {
		n += int64(c)
		up += float64(c) * math.Exp(sizeAt(class+i)+math.Ln2/perDoubling/2)
	}
	return n, up
}

// Overhead of every flow. It can hide a small upload: a server certificate is larger than a stolen key.
const (
	helloUp   = 1 << 10 // minimum that a TLS client sends to open a tunnel
	helloDown = 6 << 10 // usual maximum of a server's certificates
	headUp    = 1 << 10 // of a request without a body; a longer head carries data in its path or fields
	headDown  = 600     // of a response with little but its status

	noHello = 1 << 10 // bytes down; a flow with fewer bytes and no server name had no handshake
)

// smallUpload is the minimum size of an upload; half of it if no overhead can be included. smallFlow and
// smallAnswer bound a small flow.
const (
	smallUpload = 1 << 10
	smallFlow   = 64 << 10
	smallAnswer = 4 << 10
)

// A load is the payload of a flow in each direction without overhead.
type load struct {
	up, down int64
	bare     bool // the flow has no overhead
}

func loadOf(r *record.Record) load {
	if r.Bytes == nil {
		return load{}
	}
	up, down := r.Bytes.Up, r.Bytes.Down
	switch {
	case r.HTTP == nil && r.TLS == nil && down < noHello:
		return load{up, down, true}
	case r.HTTP == nil:
		return load{up: max(0, up-helloUp), down: max(0, down-helloDown)}
	case writes(r):
		return load{up, max(0, down-headDown), true}
	case r.HTTP.Status == http.StatusSwitchingProtocols: // what followed the head is a conversation
		return load{up: max(0, up-headUp), down: down}
	case r.HTTP.QueryBytes >= smallUpload: // a long query sends data, whatever the answer is
		return load{up: r.HTTP.QueryBytes}
	case up-headUp >= smallUpload: // a request with a long head sends data, whatever the answer is
		return load{up: up - headUp}
	}
	return load{down: down}
}

func (l load) sends() bool {
	least := int64(smallUpload)
	if l.bare {
		least /= 2
	}
	return l.up >= least && l.up > 2*l.down
}

func (l load) isSmall() bool { return l.up <= smallFlow && l.down <= smallAnswer }

// A pool sums several lanes: those of a host, of a program, or of a program with a host.
type pool struct {
	since    int64
	n        int64 // connections and requests
	up, down int64
	sent     sizes               // of flows that mostly send
	slow     int64               // number of slow flows
	asked    *[headParts]amounts // of requests without a body; nil for none
	senders  []sender
	sandbox  string // the first that has a lane in the pool
	shared   bool   // others have as well
}

// A sender is a sandbox whose program sends to a host.
type sender struct {
	sandbox string
	up      int64
	of      *sizes
}

const maxSenders = 16

type pairKey struct{ program, host string }

// pools sums all lanes for the judgement of attempts.
type pools struct {
	hosts        map[string]*pool
	programs     map[string]*pool
	pairs        map[pairKey]*pool
	destinations map[string]*pool
	timers       map[pairKey]int // sandboxes in which a program asks a destination at an interval

	known      []string          // destinations with the most flows; nil before they are asked for
	imitations map[string]string // what a destination has a name like, "" for nothing
}

func (f *Finder) sum() {
	f.pools = pools{
		hosts: map[string]*pool{}, programs: map[string]*pool{}, pairs: map[pairKey]*pool{}, destinations: map[string]*pool{}, timers: map[pairKey]int{},
	}
	for key, s := range f.sites {
		if s.small.isTimer() {
			f.pools.timers[pairKey{key.program, key.destination}]++
		}
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
	if p.n == 0 {
		p.sandbox = sandbox
	}
	p.shared = p.shared || p.sandbox != sandbox
	p.n, p.up, p.down = p.n+l.n, p.up+l.up, p.down+l.down
	if l.asked != nil {
		if p.asked == nil {
			p.asked = new([headParts]amounts)
		}
		for i := range p.asked {
			p.asked[i].merge(&l.asked.parts[i])
		}
	}
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

// peers returns the sizes that other lanes of the pool sent, to compare with own. The largest sender
// counts with at most the average of the others, so one thief does not define usual traffic.
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

// othersThatSend counts the other sandboxes in the pool that send at least a tenth of up.
func (p *pool) othersThatSend(sandbox string, up int64) (n int) {
	for _, s := range p.senders {
		if s.sandbox != sandbox && s.up >= up/10 {
			n++
		}
	}
	return n
}
