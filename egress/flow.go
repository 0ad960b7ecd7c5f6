package egress

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A Flow is one allowed attempt, from Open to Close: the capability to dial
// what was decided. Its methods are safe for concurrent use.
//
// Thousands of flows are idle tunnels: what they have in common is shared, and
// what is left stands close.
type Flow struct {
	gate       *Gate
	id         record.ID
	began      time.Duration // since gate.began
	next, prev *Flow         // guarded by gate.Flows.mu

	mu       sync.Mutex       // guards what follows; held for moments, never while a policy decides
	request  *policy.Request  // not changed once the flow is open: others may share it
	decision *policy.Decision // not changed: others may share it
	policy   *policy.Policy   // that decided
	seq      int64            // of the record that has to be durable before the first byte
	conn     net.Conn
	onChange func()   // told when the flow was cut, or has another budget
	src      endpoint // not guarded: it does not change
	dialled  endpoint
	hurried  bool // who opens it must not wait
	wasCut   bool
	closed   bool
	tunnel   contents
}

// inSum is the seq of a denial that has no record of its own: its id is that of a record that may name something else.
// A flow without any record yet has -1.
const inSum = -2

// An End is how a flow ended.
type End struct {
	Up, Down int64  // payload bytes
	Status   int    // of the HTTP response, 0 where there was none
	Outcome  string // "closed", "reset", "idle-timeout", …; a class where the flow failed or was refused
	Note     string // what a person should know of it, and what to do
}

func (g *Gate) newFlow(peer sandbox.Peer, r policy.Request) *Flow {
	f := new(Flow)
	g.begin(f, peer, &r)
	return f
}

// begin makes f one that nothing is known of but peer and r, which it keeps.
func (g *Gate) begin(f *Flow, peer sandbox.Peer, r *policy.Request) {
	now := time.Now()
	r.Time = now
	if r.Process == nil {
		r.Process = peer.Process
	}
	*f = Flow{gate: g, id: g.ids.next(now), began: now.Sub(g.began), src: endpointOf(peer.Addr), request: r, decision: undecided, seq: -1}
}

// undecided is the decision of a flow before there is one: the zero value,
// which denies.
var undecided = new(policy.Decision)

// OpenNow is Open for an event loop: it answers at once or reports wait,
// having recorded nothing. A slow policy or log, a name server or a person make it wait. Then
// Open has to be called where one can wait.
func (g *Gate) OpenNow(peer sandbox.Peer, r policy.Request) (f *Flow, wait bool, err error) {
	if !g.policy.Load().Prompt() || !g.config.Log.Prompt() {
		return nil, true, nil
	}
	f = g.newFlow(peer, r)
	f.hurried = true
	refusal := f.open(context.Background(), peer)
	switch {
	case refusal == wouldWait:
		return nil, true, nil
	case refusal != nil:
		return nil, false, refusal
	}
	return f, false, nil
}

// Open decides whether peer may do what r asks, up to the addresses that its
// destination resolves to, and records the decision before it returns. The
// error is always a [*Refusal]. Cancelling ctx ends only the wait for a person's approval; the record is written in
// any case.
func (g *Gate) Open(ctx context.Context, peer sandbox.Peer, r policy.Request) (*Flow, error) {
	f := g.newFlow(peer, r)
	if refusal := f.open(ctx, peer); refusal != nil {
		return nil, refusal
	}
	return f, nil
}

func (f *Flow) open(ctx context.Context, peer sandbox.Peer) *Refusal {
	if f.gate.shut.Load() {
		return f.refuse(stopping)
	}
	who, err := f.gate.config.Sandboxes.Identify(peer)
	if err != nil && f.gate.config.Sandboxes.Awaits(peer) {
		if f.hurried {
			return wouldWait
		}
		f.gate.config.Sandboxes.Await(ctx, peer)
		who, err = f.gate.config.Sandboxes.Identify(peer)
	}
	if err != nil {
		f.request.Sandbox.Container = who.Container
		return f.refuse(policy.Decision{Class: policy.UnknownSandbox, Rule: "identity", Layer: policy.Builtin, Reason: err.Error()})
	}
	f.request.Sandbox = who
	held, ok := f.charge()
	if !ok {
		return f.refuse(tooManyFlows)
	}
	id := f.id
	if refusal := f.admit(ctx); refusal != nil {
		f.gate.Approvals.FlowEnded(id)
		f.account().refund(held)
		return refusal
	}
	f.request = f.gate.requests.of(f.request)
	return f.found(ctx)
}

// charge counts the flow, if its sandbox may have one more.
func (f *Flow) charge() (c charge, ok bool) {
	var before policy.Usage
	for gone := true; gone; {
		c, before, ok, gone = f.account().charge(f.began, f.request.HTTP != nil, int64(f.gate.config.FlowsPerSandbox))
	}
	if f.gate.policy.Load().ReadsUsage() {
		seen := before // a copy: each flow would pay for before
		f.request.Usage = &seen
	}
	return c, ok
}

func (f *Flow) account() *account {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gate.accounts.of(f.request.Sandbox.Name)
}

// admit decides the name, resolves it, decides its addresses, and records.
func (f *Flow) admit(ctx context.Context) *Refusal {
	calm := context.WithoutCancel(ctx)
	a := asking{Flow: f}
	if refusal := a.decideOrAsk(ctx, f.request); refusal != nil {
		return f.denied(calm, refusal)
	}
	if dst := &f.request.Destination; !dst.Addr.IsValid() && !f.gate.Route.proxy.Load().resolves(dst) {
		if refusal := f.resolve(calm); refusal != nil {
			return refusal
		}
		if refusal := a.decideOrAsk(ctx, f.request); refusal != nil {
			return f.denied(calm, refusal)
		}
	}
	f.compare(calm, f.request)
	return f.recordDecision()
}

// resolve fills in the addresses. A query that leaves the machine is recorded
// before it is sent.
func (f *Flow) resolve(ctx context.Context) *Refusal {
	if f.gate.config.Resolver == nil {
		return f.failed(ctx, policy.NetworkDNS)
	}
	dst := &f.request.Destination
	var ok bool
	if dst.Addrs, dst.Aliases, ok = f.gate.config.Resolver.Cached(dst.Host); ok && len(dst.Addrs) > 0 {
		return nil
	}
	if f.hurried {
		return wouldWait
	}
	used := f.account()
	defer used.endLookup(dst.Host)
	if !used.startLookup(dst.Host) {
		return f.refuse(policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has too many names looked up at a time"})
	}
	if _, err := f.gate.Records.append(f, recordOf{kind: record.KindDNS}); err != nil {
		return f.refusal(unavailable)
	}
	ctx, cancel := f.gate.patience(ctx)
	defer cancel()
	var err error
	dst.Addrs, dst.Aliases, err = f.gate.config.Resolver.Lookup(ctx, dst.Host)
	switch {
	case f.gate.shut.Load():
		return f.refuse(stopping)
	case err != nil || len(dst.Addrs) == 0:
		return f.failed(ctx, policy.NetworkDNS)
	}
	return nil
}

// refuse records a refusal that happens before anything passed.
func (f *Flow) refuse(d policy.Decision) *Refusal {
	if d.Policy == "" {
		d.Policy = f.gate.Digest()
	}
	f.noteDenial()
	f.decision = &d
	if refusal := f.recordDecision(); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// failed records that what was allowed did not come about.
func (f *Flow) failed(ctx context.Context, class policy.Class) *Refusal {
	f.compare(ctx, f.request)
	if refusal := f.recordDecision(); refusal != nil {
		return refusal
	}
	f.recordEnd(End{Outcome: string(class)})
	return f.networkRefusal(class)
}

func (f *Flow) recordDecision() *Refusal {
	kind := record.KindOpen
	switch {
	case f.request.DNS != nil:
		kind = record.KindDNS
	case f.request.HTTP != nil:
		kind = record.KindRequest
	}
	if !passes(f.decision.Verdict) {
		return f.refused(recordOf{kind: kind})
	}
	seq, err := f.gate.Records.append(f, recordOf{kind: kind})
	if err != nil {
		return f.refusal(unavailable)
	}
	f.seq = seq
	return nil
}

// recordEnd writes the close record of a flow that was never open.
func (f *Flow) recordEnd(end End) {
	_, _ = f.gate.Records.append(f, recordOf{kind: record.KindClose, end: end, took: f.took()})
}

// found has the flow be found by whoever cuts flows, and looks whether the policy has changed
// before. Where that must not be waited for, it is looked at before anything is dialled.
func (f *Flow) found(ctx context.Context) *Refusal {
	hurried := f.hurried
	f.hurried = false
	f.gate.Flows.add(f)
	refusal, _ := f.decideAgain(context.WithoutCancel(ctx), false, hurried)
	switch {
	case refusal == nil:
	case hurried:
		f.CloseNow(End{Outcome: string(refusal.Decision.Class)})
	default:
		f.Close(End{Outcome: string(refusal.Decision.Class)})
	}
	return refusal
}

// ID names the flow in replies and records.
func (f *Flow) ID() record.ID { return f.id }

// Destination is what was asked for, with the addresses that were decided.
func (f *Flow) Destination() policy.Destination {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.request.Destination
}

// Sandbox names who opened the flow.
func (f *Flow) Sandbox() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.request.Sandbox.Name
}

// AnyProtocol reports whether a rule lets the flow carry what is neither TLS
// nor HTTP on the web's ports.
func (f *Flow) AnyProtocol() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decision.AnyProtocol
}

// OnCut has stop called, soon, when a later policy refuses the flow. It is called
// at once when that has happened already.
func (f *Flow) OnCut(stop func()) {
	f.OnChange(func() {
		if f.WasCut() {
			stop()
		}
	})
}

// OnChange has look called, soon, when a later policy refuses the flow, which
// WasCut tells, or gives it another budget. It is called at once when the flow was
// cut already. Only the last of what is given to OnChange and OnCut counts.
func (f *Flow) OnChange(look func()) {
	f.mu.Lock()
	f.onChange = look
	late := f.wasCut
	f.mu.Unlock()
	if late {
		look()
	}
}

// WasCut reports whether a later policy has refused the flow.
func (f *Flow) WasCut() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wasCut
}

// Refusal returns why a flow that was cut may not go on. It returns nil if an operator cut it.
func (f *Flow) Refusal() *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gate.shut.Load() {
		return f.refusal(stopping)
	}
	if passes(f.decision.Verdict) {
		return nil
	}
	return f.refusal(*f.decision)
}

// changed has whoever carries the flow look at it again.
func (f *Flow) changed() {
	f.mu.Lock()
	look := f.onChange
	f.mu.Unlock()
	if look != nil {
		look()
	}
}

func (f *Flow) cut() {
	f.mu.Lock()
	if f.closed { // since it was found open; its connection may serve another by now
		f.mu.Unlock()
		return
	}
	f.wasCut = true
	conn := f.conn
	f.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
	f.changed()
}

// Wait returns when the flow's record is durable, so that its first byte may
// pass. The error is a [*Refusal].
func (f *Flow) Wait(ctx context.Context) error {
	if err := f.gate.config.Log.Wait(ctx, f.seq); err != nil {
		return f.Unrecorded()
	}
	return nil
}

// Unrecorded returns the refusal to show where the flow's record cannot become durable.
func (f *Flow) Unrecorded() *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refusal(unavailable)
}

// Durable calls done once the flow's record is durable, or cannot become so;
// done may run on any goroutine and must not wait.
func (f *Flow) Durable(done func(error)) { f.gate.config.Log.Durable(f.seq, done) }

// Settled reports whether Durable would call done before it returns, and with what.
func (f *Flow) Settled() (known bool, err error) { return f.gate.config.Log.Settled(f.seq) }

// Close ends the flow and records how. Only the first call counts.
func (f *Flow) Close(end End) { f.close(end, func(record func()) { record() }) }

// CloseNow is Close for an event loop: where the log may take its time, the record is written
// after it has returned, and [Gate.CloseLeft] waits for that.
func (f *Flow) CloseNow(end End) {
	f.close(end, func(record func()) {
		if f.gate.config.Log.Prompt() {
			record()
			return
		}
		f.gate.tasks.start(record)
	})
}

func (f *Flow) close(end End, by func(record func())) {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	f.closed = true
	conn := f.conn
	if f.wasCut {
		end.Outcome = "cut"
	}
	line := f.gate.Records.encode(f, recordOf{kind: record.KindClose, end: end, took: f.took()})
	f.mu.Unlock()
	by(func() { _, _ = f.gate.config.Log.Append(line) }) // a log that fails now refuses the next flow
	f.gate.Flows.remove(f)
	f.gate.Approvals.FlowEnded(f.id)
	f.account().ended()
	if conn != nil {
		conn.Close()
	}
}

// took is how long the flow has lasted.
func (f *Flow) took() time.Duration { return time.Since(f.gate.began) - f.began }
