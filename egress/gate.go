// Package egress is the only way out. A [Gate] identifies who asks, has the
// policy decide, resolves a name once, has its addresses decided, records
// all that, and hands out a [Flow]: the capability to dial exactly what was
// decided, and nothing else. No other package dials, resolves, decides or
// records for a sandbox.
//
//	flow, err := gate.Open(ctx, peer, policy.Request{Via: policy.ViaConnect, Destination: dst})
//	if err != nil { … a *Refusal: render it }
//	conn, err := flow.Dial(ctx)
//	…
//	flow.Close(egress.End{Up: up, Down: down, Outcome: "closed"})
package egress

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A Resolver turns a canonical name into addresses. It has to be safe for
// concurrent use.
type Resolver interface {
	// Cached answers without waiting and without sending anything, or not.
	Cached(name string) (addrs []netip.Addr, aliases []string, ok bool)
	// Lookup may ask the network. aliases are the canonical names on the way.
	Lookup(ctx context.Context, name string) (addrs []netip.Addr, aliases []string, err error)
}

// A LocalResolver is a Resolver that has some names from the machine's own files.
type LocalResolver interface {
	IsLocal(name string) bool
}

// isLocal reports whether the addresses of a name come from the machine's own files.
func isLocal(r Resolver, name string) bool {
	local, ok := r.(LocalResolver)
	return ok && local.IsLocal(name)
}

// A RRResolver is a Resolver that also looks up resource records of other types than A and AAAA.
type RRResolver interface {
	// MayAsk reports whether sandboxes may ask for records of a type, such as "SRV".
	MayAsk(kind string) bool
	// LookupRRs may ask the network. aliases are the canonical names on the way.
	LookupRRs(ctx context.Context, name, kind string) (rrs RRs, aliases []string, err error)
}

// RRs are the resource records that a name has of one type. They are read only.
type RRs struct {
	Data [][]byte // of each, in wire format and without compression
	TTL  time.Duration
}

// Config is what a gate is made of. Log and Sandboxes have to be given;
// without a Resolver only addresses can be reached.
type Config struct {
	Log       *audit.Log
	Sandboxes *sandbox.Directory
	Resolver  Resolver
	// Life returns for how long the Resolver's addresses of a name still hold, for [Gate.Resolve]. nil means one second.
	Life func(name string) time.Duration

	// FlowsPerSandbox bounds the flows that one sandbox has open at a time;
	// 0 means 4096.
	FlowsPerSandbox int
	// DialTimeout bounds resolving a name, and then connecting to its addresses together; 0 means 15 s.
	DialTimeout time.Duration

	// Placeholders is the range of the addresses that [Names.Bind] hands out; none by default.
	Placeholders names.Range
	// BindAnswers has the gate bind the addresses of answers to their names, for [Names.OfAnswer].
	BindAnswers bool
	// FixFlags are the flags, each after a space, with which "egressd allow HOST --from ID"
	// changes this gate's policy. Refusals show them.
	FixFlags string
	// Inquiries returns what a sandbox may reach, for the ways in to answer at [policy.InquiryURL], which refusals name
	// then. It has to be safe for concurrent use. nil: they do not answer there.
	Inquiries func(*policy.Sandbox) []Allowance
	// NameLimits bound what one sandbox may ask a name server.
	NameLimits names.Limits
	// Tally counts what is recorded; nil: nobody wants to know.
	Tally *Tally
	// Alarm is told of each canary that was found, and must not wait; nil: nobody is.
	Alarm func(Alarm)
}

// A Gate decides, dials and records. It refuses everything until SetPolicy
// has given it a policy, and is safe for concurrent use.
type Gate struct {
	Approvals   Approvals   // questions to people
	Inquiries   Inquiries   // what sandboxes ask egressd itself
	Names       Names       // questions to name servers
	Flows       Flows       // that are open
	Attachments Attachments // networks of sandboxes, for as long as egressd has them
	Records     Records     // what the log says, and counts of it
	Route       Route       // to destinations
	Outlook     Outlook     // at what the policy would decide
	Ceilings    SpanBudgets // of what goes up

	config   Config
	policy   atomic.Pointer[policy.Policy]
	known    knownPolicies
	ids      idSource
	began    time.Time
	shared   sharedDecisions
	canaries canaries

	denyMessages atomic.Pointer[DenyMessages]

	accounts accounts
	tasks    tasks
	ports    fair.Recent
	shut     atomic.Bool
	life     context.Context // until Shut
	die      context.CancelFunc
}

// New returns a gate without a policy: it refuses everything.
func New(c Config) *Gate {
	if c.FlowsPerSandbox == 0 {
		c.FlowsPerSandbox = 4096
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 15 * time.Second
	}
	c.NameLimits = c.NameLimits.WithDefaults()
	g := &Gate{config: c, began: time.Now(), ports: fair.Recent{Most: localPorts()}}
	g.Names.rrs, _ = c.Resolver.(RRResolver)
	g.Records.gate, g.Route.gate = g, g
	g.Attachments.flows = &g.Flows
	g.accounts.sandboxes, g.accounts.onDrop = c.Sandboxes, g.Names.answers.Forget
	g.Outlook.gate, g.Inquiries.gate = g, g
	g.Names.gate, g.Names.placeholders.Range = g, c.Placeholders
	g.Approvals.gate, g.Approvals.OnApprovalEnd = g, g.Approvals.lapse
	g.life, g.die = context.WithCancel(context.Background())
	return g
}

// patience bounds what one flow may wait for: by its own time, and by Shut.
func (g *Gate) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, late := context.WithTimeout(ctx, g.config.DialTimeout)
	ctx, cancel := g.untilShut(ctx)
	return ctx, func() { cancel(); late() }
}

// untilShut is ctx, and ends with Shut too.
func (g *Gate) untilShut(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// SetPolicy puts p in force for everything that is decided from now on,
// records it with note, and decides every open flow again: those that p
// refuses are cut, and those that it gives another budget are told. The error means that the change could not be recorded;
// then the policy before stays.
func (g *Gate) SetPolicy(ctx context.Context, p *policy.Policy, note string) error {
	if err := g.Records.policy(p, note); err != nil {
		return err
	}
	g.policy.Store(p)
	g.Approvals.review(ctx, p)
	g.decideOpen(func(f *Flow) *Refusal { return f.current(ctx) })
	return nil
}

// Recheck decides every open flow again, although the policy is the same: a grant that let it pass may have ended
// ([policy.Grant.Over]). A flow that is just being opened is decided again before it is open.
func (g *Gate) Recheck(ctx context.Context) {
	before := g.policy.Load()
	again := *before // the same at another address: what before has decided is decided again, also if it is not listed yet
	g.policy.CompareAndSwap(before, &again)
	g.decideOpen(func(f *Flow) *Refusal { return f.current(ctx) })
}

// decideOpen cuts the open flows that decide refuses, and tells those that it gives another budget.
func (g *Gate) decideOpen(decide func(*Flow) *Refusal) {
	for _, f := range g.Flows.all() {
		before := f.Budget()
		switch {
		case decide(f) != nil:
			f.cut()
		case f.Budget() != before:
			f.changed()
		}
	}
}

// RejectPolicy records that a new policy was refused and the one in force
// stays. note says why.
func (g *Gate) RejectPolicy(note string) error {
	return g.Records.policy(g.policy.Load(), note)
}

// Observing returns the observations of the policy in force that have not ended.
func (g *Gate) Observing() []policy.Observation { return g.policy.Load().Observing() }

// SetFields are the fields that a request to d has to have when the gate is asked about it: see [policy.Policy.SetFields].
func (g *Gate) SetFields(d policy.Destination) []policy.SetField { return g.policy.Load().SetFields(d) }

// Digest identifies the policy in force.
func (g *Gate) Digest() string { return g.policy.Load().Digest() }

// Shut refuses everything from now on and cuts every open flow.
func (g *Gate) Shut() {
	g.shut.Store(true)
	g.die()
	for _, f := range g.Flows.all() {
		f.cut()
	}
}

// CloseLeft closes the flows whose owners have ended, so that each flow has its close
// record. Then it waits for the gate's own goroutines. Call it after Shut.
func (g *Gate) CloseLeft() {
	for _, f := range g.Flows.all() {
		f.Close(End{Outcome: record.OutcomeCut})
	}
	g.tasks.wait()
}

// tasks are goroutines that somebody waits for. Unlike with a [sync.WaitGroup], more may start during the wait. The
// zero value has none.
type tasks struct {
	mu   sync.Mutex // guards what follows
	n    int
	none chan struct{} // closed when there are none; nil if nobody waits
}

// start runs task on a goroutine.
func (t *tasks) start(task func()) {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
	go func() {
		defer t.done()
		task()
	}()
}

func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.none != nil {
		close(t.none)
		t.none = nil
	}
}

// wait returns once there are none.
func (t *tasks) wait() {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return
	}
	if t.none == nil {
		t.none = make(chan struct{})
	}
	none := t.none
	t.mu.Unlock()
	<-none
}
