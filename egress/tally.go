package egress

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// A Tally counts what passed a gate and what did not, for who started it. Its
// zero value is ready; it is safe for concurrent use.
type Tally struct {
	// First is called for each connection or request that is the first one denied to its place; nil for nobody. While a person
	// is asked, nothing counts as denied. First must not block, nor call the tally. It is set before the first use.
	First func(DeniedHost)

	mu     sync.Mutex // guards what follows
	counts Counts
	hosts  map[string]struct{}
	denied map[place]*DeniedHost
	told   map[place]bool              // of denied, those for which First was called
	asked  map[string]*unansweredPlace // by question
}

// A place is a destination that was denied: port is 0 after a DNS question.
type place struct {
	host string
	port uint16
}

// An unansweredPlace counts the denials of a place by a question that nobody has approved yet. An approval takes them back.
type unansweredPlace struct {
	place
	times int
	first bool // the record of the question was counted, and not yet the denial of its flow
}

// Counts is what a [Tally] says.
type Counts struct {
	Requests int // connections, and of those that are looked into the requests
	Hosts    int
	Up, Down int64 // payload bytes
	Denied   []DeniedHost
	Learned  int // of the requests, those that passed because of [policy.LearnRule]

	Failed      int         // of the requests, those that were allowed and failed in the network
	LastFailure *FailedHost // nil if none failed
}

// A FailedHost is a destination that was allowed and could not be reached.
type FailedHost struct {
	Host   string
	Port   uint16
	Class  policy.Class
	Reason string
}

// A DeniedHost is a host with one port, and how often it was denied. A DNS question counts only if no
// connection followed it, and then once.
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
	followed := map[string]bool{} // hosts of denied connections
	for at, d := range t.denied {
		followed[at.host] = followed[at.host] || d.Times > 0
	}
	for _, at := range slices.SortedFunc(maps.Keys(t.denied), comparePlaces) {
		d := *t.denied[at]
		if d.Times == 0 && followed[at.host] {
			continue
		}
		d.Times = max(1, d.Times)
		c.Denied = append(c.Denied, d)
	}
	slices.SortStableFunc(c.Denied, func(a, b DeniedHost) int { return cmp.Compare(b.Times, a.Times) })
	return c
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.port, b.port))
}

// note counts what a record says. t may be nil.
func (t *Tally) note(f *Flow, r recordOf) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	denies := f.decision.Class != "" && !passes(f.decision.Verdict)
	host := f.gate.canaries.without(f.request.Destination.Host)
	switch {
	case r.kind == record.KindDNS && f.request.Via == policy.ViaDNS && denies && f.decision.Class != policy.AskRejected: // whose connection is asked about
		t.deny(deniedHost(f, host, 0))
	case r.kind == record.KindDNS:
	case denies:
		d := deniedHost(f, cmp.Or(host, "malformed requests"), 1)
		if t.isCounted(f.decision.Question) {
			t.settle(d)
			return
		}
		t.deny(d)
		t.ask(f.decision.Question, place{d.Host, d.Port}, f.decision.Question == f.id.String())
	case f.decision.Question != "" && r.kind != record.KindClose:
		t.approved(f.decision.Question)
	case r.kind == record.KindClose:
		t.ended(f, r.end)
	}
}

// deniedHost returns what a denial of f counts as: times is 0 for a DNS question.
func deniedHost(f *Flow, host string, times int) DeniedHost {
	d := DeniedHost{Host: host, Times: times, Class: f.decision.Class, Reason: f.decision.Reason, Fix: f.refusal(*f.decision).Fix()}
	if host != f.request.Destination.Host {
		d.Reason, d.Fix = "", "" // both may hold the canary that host no longer has
	}
	if times > 0 {
		d.Port = f.request.Destination.Port
	}
	return d
}

// deny counts a denial.
func (t *Tally) deny(d DeniedHost) {
	if t.denied == nil {
		t.denied = map[place]*DeniedHost{}
	}
	at := place{d.Host, d.Port}
	known := t.denied[at]
	if known == nil && len(t.denied) >= talliedMost {
		d, at = DeniedHost{Host: otherHosts, Times: d.Times}, place{host: otherHosts}
		known = t.denied[at]
	}
	if known == nil {
		t.denied[at] = &d
	} else {
		d.Times += known.Times
		*known = d
	}
	t.tell(at, d)
}

// settle replaces the reason of a denial that the record of a question has counted: it was asked about, and d is how that ended.
func (t *Tally) settle(d DeniedHost) {
	at := place{d.Host, d.Port}
	if known := t.denied[at]; known != nil {
		d.Times = known.Times
		*known = d
		t.tell(at, d)
	}
}

// tell calls First for the first denial of a place that is not about to be asked about.
func (t *Tally) tell(at place, d DeniedHost) {
	if t.First == nil || d.Times == 0 || d.Class == policy.AskPending || at.host == otherHosts || t.told[at] {
		return
	}
	if t.told == nil {
		t.told = map[place]bool{}
	}
	t.told[at] = true
	t.First(d)
}

// isCounted reports whether the record of a question has counted the denial of its flow already.
func (t *Tally) isCounted(question string) bool {
	a := t.asked[question]
	counted := a != nil && a.first
	if counted {
		a.first = false
	}
	return counted
}

// ask notes that a question has denied a place. first says that the record is that of the question itself.
func (t *Tally) ask(question string, at place, first bool) {
	if question == "" || t.denied[at] == nil || len(t.asked) >= talliedMost {
		return
	}
	if t.asked == nil {
		t.asked = map[string]*unansweredPlace{}
	}
	if t.asked[question] == nil {
		t.asked[question] = &unansweredPlace{place: at, first: first}
	}
	t.asked[question].times++
}

// approved takes back the denials of questions that a person has approved since. The IDs have spaces between them.
func (t *Tally) approved(questions string) {
	for _, id := range strings.Fields(questions) {
		a := t.asked[id]
		if a == nil {
			continue
		}
		delete(t.asked, id)
		if d := t.denied[a.place]; d != nil {
			if d.Times -= a.times; d.Times <= 0 {
				delete(t.denied, a.place)
			}
		}
	}
}

// ended counts a flow. One that others were opened in their place counts by
// those.
func (t *Tally) ended(f *Flow, end End) {
	hello := f.request.TLS
	inside := f.request.HTTP == nil && hello != nil && hello.Inspected
	if inside || end.Outcome == "http" || end.Outcome == "named" {
		return
	}
	t.counts.Requests++
	if reason := networkReasons[policy.Class(end.Outcome)]; reason != "" {
		d := &f.request.Destination
		t.counts.Failed++
		t.counts.LastFailure = &FailedHost{f.gate.canaries.without(d.Host), d.Port, policy.Class(end.Outcome), reason}
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
