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
		refusal = f.askLater(ctx, r, refusal)
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
func (f *Flow) current(ctx context.Context) *Refusal { return f.recheck(ctx, false) }

// recheck is current, and with anew decides again whichever policy decided.
func (f *Flow) recheck(ctx context.Context, anew bool) *Refusal {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.gate.shut.Load():
		return f.refusal(stopping)
	case f.left():
		return f.refusal(gone)
	case f.closed || f.wasCut || !passes(f.decision.Verdict):
		return f.refusal(*f.decision)
	case anew, f.policy != f.gate.policy.Load(), f.lapsed():
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
	f.gate.desk.left(f.id)
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
