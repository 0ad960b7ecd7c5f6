package egress

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/record/count"
)

// Counts for whoever watches egressd. They have no name and no text that a sandbox
// chooses: there are as many as there are ways in, actions and classes, and no more.
var (
	countedVias    = [...]string{string(policy.ViaConnect), string(policy.ViaHTTP), string(policy.ViaSOCKS5), string(policy.ViaTransparent), string(policy.ViaDNS), string(policy.ViaEnter), string(policy.ViaUnknown), otherThings}
	countedActions = [...]string{"allow", "deny", "ask"}
	countedClasses = [...]string{"", // of what is allowed
		string(policy.DefaultDeny), string(policy.RuleDeny), string(policy.MethodDenied), string(policy.PathDenied), string(policy.HeaderDenied), string(policy.QueryDenied), string(policy.GitDenied), string(policy.BodyDenied), string(policy.MCPDenied), string(policy.ModelDenied), string(policy.GraphQLDenied), string(policy.BodyTooLarge), string(policy.AddressDenied),
		string(policy.NameMismatch), string(policy.NoServerName), string(policy.NotTLS), string(policy.ECHRefused),
		string(policy.MalformedRequest), string(policy.MalformedHost), string(policy.UnknownSandbox), string(policy.ContainerRefused), string(policy.AskPending), string(policy.AskTimeout), string(policy.AskRejected),
		string(policy.TooManyFlows), string(policy.ByteBudget), string(policy.PolicyNotLoaded), string(policy.PolicyError), string(policy.AuditUnavailable),
		string(policy.DNSTypeDenied), string(policy.DNSBudget), string(policy.Canary), string(policy.UDPDenied), string(policy.UpgradeDenied),
		string(policy.ResponseRefused), string(policy.MalformedResponse), string(policy.CredentialRefused), string(policy.CredentialUnavailable), string(policy.CertificateRefused),
		string(policy.NetworkDNS), string(policy.NetworkRefused), string(policy.NetworkUnreachable), string(policy.NetworkTLS), string(policy.NetworkReset), string(policy.NetworkTimeout), string(policy.UpstreamRefused),
		otherThings,
	}
)

// otherThings is what is counted together, in the last place of each list.
const otherThings = "other"

// placeIn returns where name stands in a list, and the last place where it does not.
func placeIn(list []string, name string) int {
	if i := slices.Index(list, name); i >= 0 {
		return i
	}
	return len(list) - 1
}

// Bounds of the buckets of what is timed.
var (
	decideBounds = []time.Duration{
		5 * time.Microsecond, 10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, time.Second,
	}
	connectBounds = []time.Duration{
		500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 15 * time.Second,
	}
	lastBounds = []time.Duration{
		10 * time.Millisecond, 100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 12 * time.Hour,
	}
)

// bucketsMost is more than there are bounds.
const bucketsMost = 16

// counters count what a gate records, before it is in the log: what the log then fails to take is
// counted too, and so are repeats whose sum is still to be written. Nothing waits for them; the zero
// value is ready.
type counters struct {
	decisions decisionCounts
	requests  decisionCounts // as package count says
	ended     atomic.Int64   // flows
	failed    [len(countedClasses)]atomic.Int64
	lookups   atomic.Int64
	decided   timings
	connected timings
	lasted    timings

	names   sync.Mutex // guards counter
	counter count.Counter[*atomic.Int64]
	waiting atomic.Bool // names wait in counter for a connection
}

// decisionCounts are counts by way in, action and class.
type decisionCounts [len(countedVias)][len(countedActions)][len(countedClasses)]atomic.Int64

func (t *decisionCounts) of(f *Flow) *atomic.Int64 {
	d := f.decision
	return &t[placeIn(countedVias[:], string(f.request.Via))][placeIn(countedActions[:], d.Verdict.Action())][placeIn(countedClasses[:], string(d.Class))]
}

// figures returns the counts that are not 0.
func (t *decisionCounts) figures() (all []DecisionFigure) {
	for v := range countedVias {
		for a := range countedActions {
			for i := range countedClasses {
				if n := t[v][a][i].Load(); n > 0 {
					all = append(all, DecisionFigure{countedVias[v], countedActions[a], countedClasses[i], n})
				}
			}
		}
	}
	return all
}

// timings are how long something took.
type timings struct {
	in  [bucketsMost]atomic.Int64 // the last one that is used: longer than every bound
	sum atomic.Int64              // nanoseconds
}

func (t *timings) observe(took time.Duration, bounds []time.Duration) {
	i := 0
	for i < len(bounds) && took > bounds[i] {
		i++
	}
	t.in[i].Add(1)
	t.sum.Add(int64(took))
}

func (t *timings) read(bounds []time.Duration) Histogram {
	h := Histogram{Sum: time.Duration(t.sum.Load()), Bounds: bounds, Below: make([]int64, len(bounds))}
	for i := range bounds {
		h.Count += t.in[i].Load()
		h.Below[i] = h.Count
	}
	h.Count += t.in[len(bounds)].Load()
	return h
}

func (c *counters) note(f *Flow, r recordOf) {
	denied := !passes(f.decision.Verdict)
	c.request(f, r, denied)
	switch {
	case r.kind == record.KindDNS && f.request.Via != policy.ViaDNS:
		c.lookups.Add(1) // which the gate makes for a flow that is allowed so far
		return
	case r.kind == record.KindClose:
		c.ended.Add(1)
		c.lasted.observe(r.took, lastBounds)
		if i := slices.Index(countedClasses[1:], string(r.end.Outcome)); i >= 0 {
			c.failed[1+i].Add(1)
		}
		if !denied { // else it was refused after it had been opened
			return
		}
	}
	c.decisions.of(f).Add(1)
}

// request counts requests: one that passes when it ends, and a name when it is known that no connection followed. A figure
// never gets less, so a refusal for want of an answer stays counted when a person has said yes.
func (c *counters) request(f *Flow, r recordOf, denied bool) {
	asksName, ends := f.request.DNS != nil, r.kind == record.KindClose
	switch {
	case r.kind == record.KindDNS && !asksName:
		return
	case ends && !denied:
		if !f.carries(r.end) {
			c.requests.of(f).Add(1)
		}
		return
	case denied && !asksName && f.decision.Question != f.id.String():
		c.requests.of(f).Add(1)
	}
	if !asksName && !c.waiting.Load() {
		return
	}
	d := f.countedAs()
	d.Persons = nil
	c.names.Lock()
	defer c.names.Unlock()
	c.counter.Belongs, c.counter.Stays = func(*atomic.Int64, int64) {}, func(of *atomic.Int64, n int64) { of.Add(n) }
	if n, waits := c.counter.Add(&d, func() *atomic.Int64 { return c.requests.of(f) }); asksName && !waits {
		c.requests.of(f).Add(n)
	}
	c.waiting.Store(c.counter.Waits() > 0)
}

// settle counts the names that no connection has followed until now.
func (c *counters) settle(now time.Time) {
	if !c.waiting.Load() {
		return
	}
	c.names.Lock()
	defer c.names.Unlock()
	c.counter.Expire(now)
	c.waiting.Store(c.counter.Waits() > 0)
}

// Figures are what a gate has counted since it was made. Their sizes do not depend on
// what sandboxes do.
type Figures struct {
	Decisions []DecisionFigure // those that are not 0
	Requests  []DecisionFigure // the same, counted once each: those that have ended, those that were refused, names that no connection followed
	Failed    []FailureFigure  // flows that ended for a reason that has a class; those that are not 0
	Open      int              // flows
	Ended     int64            // flows
	Lookups   int64            // names that were not cached, for flows and their addresses
	Up, Down  int64            // payload bytes, also of flows that are open
	Decided   Histogram        // what the policy took for each decision: about a name, its addresses, the first bytes
	Connected Histogram        // from the start of a flow until its upstream is connected
	Lasted    Histogram        // from the start of a flow to its end
}

// A DecisionFigure is how often something was decided.
type DecisionFigure struct {
	Via, Action, Class string // Class is empty where it was allowed
	Count              int64
}

// A FailureFigure is how many flows ended for a reason.
type FailureFigure struct {
	Class string
	Count int64
}

// A Histogram says how long something took, and how often.
type Histogram struct {
	Bounds []time.Duration // not to be changed
	Below  []int64         // how many took no longer than each bound
	Count  int64
	Sum    time.Duration
}

// Within returns the lowest bound that covers part of all values, from 0 to 1. It returns 0 without a value, and if no bound
// covers so many.
func (h Histogram) Within(part float64) time.Duration {
	for i, below := range h.Below {
		if below > 0 && float64(below) >= part*float64(h.Count) {
			return h.Bounds[i]
		}
	}
	return 0
}

// Figures returns what was counted so far. It holds up nothing.
func (w *Records) Figures() Figures {
	c := &w.counts
	all := Figures{
		Open: w.gate.Flows.Count(), Ended: c.ended.Load(), Lookups: c.lookups.Load(),
		Decided: c.decided.read(decideBounds), Connected: c.connected.read(connectBounds), Lasted: c.lasted.read(lastBounds),
	}
	c.settle(time.Now())
	all.Decisions, all.Requests = c.decisions.figures(), c.requests.figures()
	for i := range countedClasses {
		if n := c.failed[i].Load(); n > 0 {
			all.Failed = append(all.Failed, FailureFigure{countedClasses[i], n})
		}
	}
	all.Up, all.Down = w.gate.accounts.bytes()
	return all
}

// connected counts how long a flow took to reach its upstream.
func (w *Records) connected(took time.Duration) { w.counts.connected.observe(took, connectBounds) }
