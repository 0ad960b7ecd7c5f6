package egress

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"

	"github.com/egressd/egressd/record"
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

// contents says who reads what a tunnel carries. Narrow decides it once; a later policy can only cut the flow.
type contents uint8

const (
	undecidedContents contents = iota // nothing has passed
	opaque                            // nobody: the bytes pass unread
	inspected                         // the policy, request by request
)

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
	r.Time = f.id.Time()
	return &r
}

// ID names the flow in replies and records.
func (f *Flow) ID() record.ID { return f.id }

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

func (f *Flow) account() *account {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gate.accounts.of(f.request.Sandbox.Name)
}

// Narrow adds what has become known of the request and decides again, by the
// policy in force now. After an error, which is always a [*Refusal], the flow
// can only be closed, and its close record holds the refusal. It is called by one
// goroutine at a time. When ctx ends, so does the wait for a policy that takes its time.
func (f *Flow) Narrow(ctx context.Context, edit func(*policy.Request)) error {
	_, err := f.narrow(ctx, edit, false)
	return err
}

// NarrowNow is Narrow for an event loop: it answers at once or reports wait. Then
// Narrow has to be called with the same edit where one can wait. A record that is written
// until then says what edit adds.
func (f *Flow) NarrowNow(edit func(*policy.Request)) (wait bool, err error) {
	return f.narrow(context.Background(), edit, true)
}

func (f *Flow) narrow(ctx context.Context, edit func(*policy.Request), now bool) (wait bool, err error) {
	r, tunnel := f.learn(edit)
	for {
		v, wait := f.verdict(ctx, r, tunnel, now)
		switch {
		case wait || now && noted(v.decision):
			return true, nil
		case !now: // a canary may be found at once, beside any policy
			v.decision = f.comparedTo(ctx, v, r)
		}
		over, stale := f.adopt(r, v)
		switch {
		case stale:
			continue
		case over != nil:
			return false, over
		case !passes(v.decision.Verdict):
			return false, f.noteRefusal(ctx, r)
		}
		return false, nil
	}
}

// learn adds to the request what edit knows of it.
func (f *Flow) learn(edit func(*policy.Request)) (r *policy.Request, tunnel contents) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, r := f.request, f.asked()
	at := r.Time
	edit(r)
	r.Sandbox, r.Via, r.Destination, r.Time = before.Sandbox, before.Via, before.Destination, at
	if !f.closed {
		f.request = r
	}
	return r, f.tunnel
}

// adopt has the flow stand on a verdict about r, which learn has returned. It is stale
// where another policy is in force by now. A flow that is over stays as it was.
func (f *Flow) adopt(r *policy.Request, v verdict) (over *Refusal, stale bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed || f.wasCut:
		return f.refusal(*f.decision), false
	case v.policy != f.gate.policy.Load():
		return nil, true
	}
	f.policy, f.decision = v.policy, v.decision
	if !passes(v.decision.Verdict) {
		return nil, false
	}
	settled := *r
	settled.Usage = nil
	switch {
	case f.tunnel != undecidedContents:
	case v.decision.Verdict == policy.Inspect:
		f.tunnel = inspected
	default:
		f.tunnel = opaque
	}
	if f.tunnel == inspected && r.TLS != nil {
		hello := *r.TLS
		hello.Inspected = true
		settled.TLS = &hello
	}
	f.request = f.gate.requests.of(&settled)
	return nil, false
}

// noted reports whether noteRefusal has something to record of a decision, which may wait for the log.
func noted(d *policy.Decision) bool { return d.Class == policy.Canary || d.Verdict == policy.Ask }

// noteRefusal counts and records what Narrow refuses, beside the close record to come. Nobody
// else writes to the flow: what is refused is not decided again.
func (f *Flow) noteRefusal(ctx context.Context, r *policy.Request) *Refusal {
	asked := (&asking{Flow: f}).list(ctx, r)
	f.noteDenial()
	if s := f.sighted(); s != nil {
		f.sight(*s)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if asked != nil && !f.closed {
		f.decision = asked
	}
	return f.refusal(*f.decision)
}

// current returns nil while the flow may go on. It decides again where the
// policy in force is no longer the one that decided; a flow that was refused,
// cut or closed stays so.
func (f *Flow) current(ctx context.Context) *Refusal { return f.recheck(ctx, false) }

// currentNow is current for an event loop: it answers at once or reports wait.
func (f *Flow) currentNow() (refusal *Refusal, wait bool) {
	return f.decideAgain(context.Background(), false, true)
}

// recheck is current, and with anew decides again whichever policy decided.
func (f *Flow) recheck(ctx context.Context, anew bool) *Refusal {
	refusal, _ := f.decideAgain(ctx, anew, false)
	return refusal
}

// decideAgain is recheck, and with now it reports wait where the policy takes its time.
func (f *Flow) decideAgain(ctx context.Context, anew, now bool) (refusal *Refusal, wait bool) {
	for {
		f.mu.Lock()
		due, refusal := f.due(anew)
		request, decision, tunnel := f.request, f.decision, f.tunnel
		r := f.asked()
		f.mu.Unlock()
		if !due {
			return refusal, false
		}
		r.Usage = nil
		v, wait := f.verdict(ctx, r, tunnel, now)
		if wait {
			return nil, true
		}
		f.mu.Lock()
		same := !f.closed && f.request == request && f.decision == decision
		if same {
			f.policy, f.decision = v.policy, v.decision
			if !passes(v.decision.Verdict) {
				refusal = f.refusal(*v.decision)
			}
		}
		f.mu.Unlock()
		if same {
			return refusal, false
		}
	}
}

// due reports whether the policy has to decide the flow again. A refusal says that the flow
// may not go on, whatever the policy says. f.mu is held.
func (f *Flow) due(anew bool) (due bool, refusal *Refusal) {
	switch {
	case f.gate.shut.Load():
		return false, f.refusal(stopping)
	case f.gate.Attachments.left(&f.request.Sandbox):
		return false, f.refusal(gone)
	case f.closed || f.wasCut || !passes(f.decision.Verdict):
		return false, f.refusal(*f.decision)
	}
	return anew || f.policy != f.gate.policy.Load() || f.decision.Question != "" && !f.gate.Approvals.AllApply(f.decision.Question, f.id), nil
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
