package egress

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A Flow is one allowed attempt, from Open to Close: the capability to dial
// what was decided. Its methods are safe for concurrent use.
//
// Thousands of flows are idle tunnels: what they have in common is shared, and
// what is left stands close.
type Flow struct {
	gate       *Gate
	id         ID
	began      time.Duration // since gate.began
	next, prev *Flow         // guarded by gate.mu

	mu       sync.Mutex       // guards what follows
	request  *policy.Request  // not changed once the flow is open: others may share it
	decision *policy.Decision // not changed: others may share it
	policy   *policy.Policy   // that decided
	seq      int64            // of the record that has to be durable before the first byte
	conn     net.Conn
	onChange func()   // told when the flow was cut, or has another budget
	src      endpoint // not guarded: it does not change
	dialled  endpoint
	hurried  bool // Open must not wait
	wasCut   bool
	closed   bool
	opaque   bool // a tunnel whose bytes pass unread
}

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

// asked returns the request for the policy to decide once more, with its time,
// in which requests that are shared differ.
func (f *Flow) asked() *policy.Request {
	r := *f.request
	r.Time = f.id.time()
	return &r
}

// ID names the flow in replies and records.
func (f *Flow) ID() ID { return f.id }

// Destination is what was asked for, with the addresses that were decided.
func (f *Flow) Destination() policy.Destination {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.request.Destination
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

func (f *Flow) slot() *slot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gate.slotOf(f.request.Sandbox.Name)
}

// takeSlot counts the flow, if its sandbox may have one more.
func (f *Flow) takeSlot() (held place, ok bool) {
	var before policy.Usage
	for gone := true; gone; {
		held, before, ok, gone = f.slot().take(f.began, f.request.HTTP != nil, int64(f.gate.config.FlowsPerSandbox))
	}
	if f.gate.policy.Load().ReadsUsage() {
		kept := before // or each flow would pay for it
		f.request.Usage = &kept
	}
	return held, ok
}

// admit decides the name, resolves it, decides its addresses, and records.
func (f *Flow) admit(ctx context.Context) *Refusal {
	if f.decide(ctx, f.request) != nil {
		return f.denied(ctx)
	}
	if !f.request.Destination.Addr.IsValid() {
		if refusal := f.resolve(ctx); refusal != nil {
			return refusal
		}
		if f.decide(ctx, f.request) != nil {
			return f.denied(ctx)
		}
	}
	f.compare(ctx, f.request)
	return f.recordDecision()
}

// decide asks the policy in force about r and keeps its answer.
func (f *Flow) decide(ctx context.Context, r *policy.Request) *Refusal {
	f.policy = f.gate.policy.Load()
	f.counted(r)
	if d := f.searched(r); d != nil {
		f.decision = d
		return f.refusal(*d)
	}
	d := f.policy.Decide(ctx, r)
	if f.opaque && d.Verdict == policy.Inspect {
		d = tooLateToLook(d)
	}
	f.decision = f.gate.shared.of(d)
	if passes(d.Verdict) {
		return nil
	}
	return f.refusal(d)
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
	slot := f.slot()
	defer slot.lookedUp(dst.Host)
	if !slot.mayLookUp(dst.Host) {
		return f.refuse(policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has too many names looked up at a time"})
	}
	if _, err := f.append(recordOf{kind: KindDNS}); err != nil {
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
	f.recordEnd(f.ending(End{Outcome: string(class)}))
	return f.networkRefusal(class)
}

func (f *Flow) recordDecision() *Refusal {
	kind := KindOpen
	switch {
	case f.request.DNS != nil:
		kind = KindDNS
	case f.request.HTTP != nil:
		kind = KindRequest
	}
	if !passes(f.decision.Verdict) {
		return f.refused(recordOf{kind: kind})
	}
	seq, err := f.append(recordOf{kind: kind})
	if err != nil {
		return f.refusal(unavailable)
	}
	f.seq = seq
	return nil
}

func (f *Flow) refusal(d policy.Decision) *Refusal {
	d.Shadow = nil // it is for the record alone
	r := &Refusal{ID: f.id, Destination: f.request.Destination, Decision: d}
	if f.request.HTTP != nil {
		r.Method = f.request.HTTP.Method
	}
	return r
}

var networkReasons = map[policy.Class]string{
	policy.NetworkDNS:         "the name could not be resolved",
	policy.NetworkRefused:     "the destination refused the connection",
	policy.NetworkUnreachable: "the destination cannot be reached",
	policy.NetworkTimeout:     "the destination did not answer in time",
	policy.NetworkTLS:         "the destination broke off or answered what is not the protocol",

	policy.ResponseRefused:       "the response is compressed or a part of one, and cannot be searched for the credential that the request carried",
	policy.CredentialUnavailable: "the credential that the rule adds cannot be had now",
}

func (f *Flow) networkRefusal(class policy.Class) *Refusal {
	return f.refusal(policy.Decision{Class: class, Rule: f.decision.Rule, Layer: f.decision.Layer, Reason: networkReasons[class], Policy: f.decision.Policy})
}

// Failed returns the refusal to show where the flow's upstream failed. It
// records nothing: Close does, with the class as the outcome. why, if it is not
// empty, is said in place of what the class says by itself; it must not hold
// text that a sandbox or an upstream chose.
func (f *Flow) Failed(class policy.Class, why string) *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.networkRefusal(class)
	if why != "" {
		r.Decision.Reason = why
	}
	return r
}

// Narrow adds what has become known of the request and decides again, by the
// policy in force now. After an error, which is always a [*Refusal], the flow
// can only be closed, and its close record holds the refusal.
func (f *Flow) Narrow(ctx context.Context, edit func(*policy.Request)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, r := f.request, f.asked()
	at := r.Time
	edit(r)
	r.Sandbox, r.Via, r.Destination, r.Time = before.Sandbox, before.Via, before.Destination, at
	f.request = r
	refusal := f.decide(ctx, r)
	f.compareBeside(ctx, r)
	if refusal != nil {
		f.noteDenial()
		if s := f.sighted(); s != nil {
			f.sight(*s)
		}
		return refusal
	}
	r.Usage = nil
	f.opaque = f.decision.Verdict == policy.Allow
	if !f.opaque && r.TLS != nil {
		hello := *r.TLS
		hello.Inspected = true
		r.TLS = &hello
	}
	f.request = f.gate.requests.of(r)
	return nil
}

// current returns nil while the flow may go on. It decides again where the
// policy in force is no longer the one that decided; a flow that was refused,
// cut or closed stays so.
func (f *Flow) current(ctx context.Context) *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.gate.shut.Load():
		return f.refusal(stopping)
	case f.left():
		return f.refusal(gone)
	case f.closed || f.wasCut || !passes(f.decision.Verdict):
		return f.refusal(*f.decision)
	case f.policy != f.gate.policy.Load():
		r := f.asked()
		r.Usage = nil
		return f.decide(ctx, r)
	}
	return nil
}

// passes reports whether a verdict lets a flow be.
func passes(v policy.Verdict) bool { return v == policy.Allow || v == policy.Inspect }

// Wait returns when the flow's record is durable, so that its first byte may
// pass. The error is a [*Refusal].
func (f *Flow) Wait(ctx context.Context) error {
	if err := f.gate.config.Log.Wait(ctx, f.seq); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.refusal(unavailable)
	}
	return nil
}

// Durable calls done once the flow's record is durable, or cannot become so;
// done may run on any goroutine and must not wait.
func (f *Flow) Durable(done func(error)) { f.gate.config.Log.Durable(f.seq, done) }

// Close ends the flow and records how. Only the first call counts. Where a shadow is
// still being asked about the flow, the record follows when it has answered.
func (f *Flow) Close(end End) {
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
	waits := f.gate.compared.find(f)
	if waits != nil {
		waits.end(f.ending(end))
	} else {
		f.recordEnd(f.ending(end))
	}
	f.mu.Unlock()
	if waits == nil {
		f.gate.remove(f)
	}
	f.slot().ended()
	if conn != nil {
		conn.Close()
	}
}

// recordEnd writes the close record; a log that fails now refuses whatever
// comes next, and has nothing to hold back here.
func (f *Flow) recordEnd(e ending) {
	_, _ = f.append(recordOf{kind: KindClose, end: e.end, took: e.took})
}

func (f *Flow) ending(end End) ending {
	return ending{end, time.Since(f.gate.began) - f.began}
}
