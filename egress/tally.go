package egress

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/record/count"
)

// A Tally counts what passed a gate and what did not, for who started it, as package count says. Its
// zero value is ready; it is safe for concurrent use.
type Tally struct {
	// First is called for each connection or request that is the first one denied to its place; nil for nobody. While a person
	// is asked, nothing counts as denied. First must not block, nor call the tally. It is set before the first use.
	First func(DeniedHost)

	mu      sync.Mutex // guards what follows
	counter count.Counter[place]
	counts  Counts
	hosts   map[string]struct{}
	denied  map[place]*DeniedHost
	told    map[place]bool // of denied, those for which First was called
}

// A place is a destination that was denied: port is 0 after a DNS question. It is empty for an allowed name.
type place struct {
	host string
	port uint16
}

// Counts is what a [Tally] says.
type Counts struct {
	Requests int // connections, and of those that are looked into the requests
	Hosts    int
	Up, Down int64 // payload bytes
	Denied   []DeniedHost
	Learned  int // of the requests, those that passed because of [policy.LearnRule]
	Names    int // allowed names that no connection followed

	Failed      int         // of the requests, those that were allowed and failed
	LastFailure *FailedHost // nil if none failed
}

// A FailedHost is a destination that was allowed and with which a request failed.
type FailedHost struct {
	Host   string
	Port   uint16
	Class  policy.Class
	Reason string
}

// A DeniedHost is a host with one port, and how often it was denied. A name counts only if no connection followed it.
type DeniedHost struct {
	Host  string `json:"host"`
	Port  uint16 `json:"port,omitempty"` // 0 after a DNS question
	Times int    `json:"times"`

	// The other fields are those of the last denial.
	Class  policy.Class `json:"class"`
	Reason string       `json:"reason,omitempty"`
	Fix    string       `json:"fix,omitempty"` // [Refusal.Fix]
}

const talliedMost = 4096

// otherHosts stands for the hosts that were too many to count one by one.
const otherHosts = "others"

// Counts returns what was counted so far, what was denied most first.
func (t *Tally) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	c.Hosts = len(t.hosts)
	for _, at := range slices.SortedFunc(maps.Keys(t.denied), comparePlaces) {
		c.Denied = append(c.Denied, *t.denied[at])
	}
	slices.SortStableFunc(c.Denied, func(a, b DeniedHost) int { return cmp.Compare(b.Times, a.Times) })
	return c
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.port, b.port))
}

// note counts what a record says. t may be nil.
func (t *Tally) note(f *Flow, r recordOf) {
	if t == nil || r.kind == record.KindDNS && f.request.Via != policy.ViaDNS {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counter.Belongs = t.takeBack
	d := f.countedAs()
	switch {
	case f.decision.Class != "" && !passes(f.decision.Verdict):
		t.deny(deniedHost(f, cmp.Or(d.Host, "malformed requests"), r.kind == record.KindDNS), &d)
	case d.Type != "":
		n, _ := t.counter.Add(&d, func() place { return place{} })
		t.counts.Names += int(n)
	case r.kind == record.KindClose:
		t.ended(f, r.end)
	default:
		t.counter.Begins(&d)
	}
}

// countedAs returns what the count needs to know of the flow now.
func (f *Flow) countedAs() count.Counted {
	d := count.Counted{
		Time: time.Now(), Sandbox: f.request.Sandbox.Name, Host: f.gate.canaries.without(f.request.Destination.Host), Action: f.decision.Verdict.Action(),
		Class: string(f.decision.Class), Persons: strings.Fields(f.decision.Question), Asks: f.decision.Question == f.id.String(), Times: 1,
	}
	if q := f.request.DNS; q != nil {
		d.Type = q.Type
	}
	return d
}

// deniedHost returns what a denial of f counts as, once.
func deniedHost(f *Flow, host string, isName bool) DeniedHost {
	d := DeniedHost{Host: host, Times: 1, Class: f.decision.Class, Reason: f.decision.Reason, Fix: f.refusal(*f.decision).Fix()}
	if host != f.request.Destination.Host {
		d.Reason, d.Fix = "", "" // both may hold the canary that host no longer has
	}
	if !isName {
		d.Port = f.request.Destination.Port
	}
	return d
}

// deny counts a denial, unless it belongs to another one.
func (t *Tally) deny(d DeniedHost, of *count.Counted) {
	at := place{d.Host, d.Port}
	if t.denied[at] == nil && len(t.denied) >= talliedMost {
		d, at = DeniedHost{Host: otherHosts}, place{host: otherHosts}
	}
	n, _ := t.counter.Add(of, func() place { return at })
	if n == 0 {
		return
	}
	d.Times = int(n)
	if t.denied == nil {
		t.denied = map[place]*DeniedHost{}
	}
	if known := t.denied[at]; known != nil {
		d.Times += known.Times
	}
	t.denied[at] = &d
	if of.Type == "" {
		t.tell(at, d)
	}
}

// takeBack is told of what was counted and belongs to another request.
func (t *Tally) takeBack(at place, n int64) {
	if at == (place{}) {
		t.counts.Names -= int(n)
		return
	}
	if known := t.denied[at]; known != nil {
		if known.Times -= int(n); known.Times <= 0 {
			delete(t.denied, at)
		}
	}
}

// tell calls First for the first denial of a place that is not about to be asked about.
func (t *Tally) tell(at place, d DeniedHost) {
	if t.First == nil || d.Class == policy.AskPending || at.host == otherHosts || t.told[at] {
		return
	}
	if t.told == nil {
		t.told = map[place]bool{}
	}
	t.told[at] = true
	t.First(d)
}

// ended counts a flow that has ended.
func (t *Tally) ended(f *Flow, end End) {
	if f.carries(end) {
		return
	}
	t.counts.Requests++
	if class := policy.Class(end.Outcome); count.Failed(end.Outcome) || end.Outcome == count.Distrusted {
		d := &f.request.Destination
		host, reason := f.gate.canaries.without(d.Host), networkReasons[class]
		if end.Note != "" && host == d.Host { // a note may name the host
			reason = end.Note
		}
		t.counts.Failed++
		t.counts.LastFailure = &FailedHost{host, d.Port, class, reason}
	}
	if f.decision.Rule == policy.LearnRule {
		t.counts.Learned++
	}
	t.counts.Up += end.Up
	t.counts.Down += end.Down
	if t.hosts == nil {
		t.hosts = map[string]struct{}{}
	}
	if len(t.hosts) < talliedMost {
		t.hosts[f.request.Destination.Host] = struct{}{}
	}
}

// carries reports whether the requests of a flow that has ended have decisions of their own.
func (f *Flow) carries(end End) bool {
	hello := f.request.TLS
	return count.Carries(end.Outcome, f.request.HTTP == nil && hello != nil && hello.Inspected, end.Up, end.Down)
}
