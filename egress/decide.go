package egress

import (
	"context"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// decide asks the policy in force about r and keeps its answer, for a flow that nobody else
// has yet.
func (f *Flow) decide(ctx context.Context, r *policy.Request) *Refusal {
	v := f.askPolicy(ctx, r, f.contents)
	f.policy, f.decision = v.policy, v.decision
	if passes(v.decision.Verdict) {
		return nil
	}
	return f.refusal(*v.decision)
}

// A verdict is a policy's decision about a request, which the flow has not adopted yet.
type verdict struct {
	policy   *policy.Policy
	decision *policy.Decision // not changed: others may share it
}

// askPolicy asks the policy in force about r, and changes nothing of the flow. f.mu must not be held.
func (f *Flow) askPolicy(ctx context.Context, r *policy.Request, inside contents) (v verdict) {
	v.policy = f.gate.policy.Load()
	if v.decision = f.searched(ctx, v.policy, r); v.decision != nil {
		return v
	}
	if !v.policy.AnswersAtOnce() {
		var done context.CancelFunc
		ctx, done = f.gate.untilShut(ctx)
		defer done()
	}
	r = f.counted(v.policy, r)
	approved := f.gate.Approvals.apply(f.id, r)
	begin := time.Since(f.gate.began)
	d := v.policy.Decide(ctx, approved)
	f.gate.Records.counts.decided.observe(time.Since(f.gate.began)-begin, decideBounds)
	d = f.gate.Approvals.classify(d, r)
	if f.gate.shut.Load() && !v.policy.AnswersAtOnce() {
		d = stopping // or it would be an error of the policy
	}
	if inside == opaque && d.Verdict == policy.Inspect {
		d = tooLateToLook(d, r)
	}
	v.decision = f.gate.shared.of(d)
	return v
}

// tooLateToLook refuses a tunnel or a body whose bytes passed unread so far, by a policy
// that has come to depend on what is in them.
func tooLateToLook(d policy.Decision, r *policy.Request) policy.Decision {
	late := policy.Decision{
		Class: policy.RuleDeny, Rule: d.Rule, Layer: d.Layer, Policy: d.Policy,
		Reason: "the policy now looks at the requests of this destination, and the tunnel was opened before; connect again",
	}
	if r.HTTP != nil {
		late.Reason = "the policy now reads the bodies of such requests, and this one was sent before; send it again"
	}
	return late
}

// passes reports whether a verdict lets a flow be.
func passes(v policy.Verdict) bool { return v == policy.Allow || v == policy.Inspect }

// contents says who reads what a tunnel carries. Narrow decides it once; a later policy can only cut the flow.
type contents uint8

const (
	undecidedContents contents = iota // nothing has passed
	opaque                            // nobody: the bytes pass unread
	inspected                         // the policy, request by request
)

// Narrow adds what has become known of the request and decides again, by the
// policy in force now. After an error, which is always a [*Refusal], the flow
// can only be closed, and its close record holds the refusal. It is called by one
// goroutine at a time. When ctx ends, so does the wait for a policy that takes its time.
func (f *Flow) Narrow(ctx context.Context, edit func(*policy.Request)) error {
	r, inside := f.learn(edit)
	for {
		v := f.askPolicy(ctx, r, inside)
		v.decision = f.comparedTo(ctx, v, r)
		over, stale := f.adopt(r, v)
		switch {
		case stale:
			continue
		case over != nil:
			return over
		case !passes(v.decision.Verdict):
			return f.noteRefusal(ctx, r)
		}
		return nil
	}
}

// learn adds to the request what edit knows of it.
func (f *Flow) learn(edit func(*policy.Request)) (r *policy.Request, inside contents) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, more := f.request, *f.request
	edit(&more)
	more.Sandbox, more.Via, more.Destination, more.Time = before.Sandbox, before.Via, before.Destination, before.Time
	if !f.closed {
		f.request = &more
	}
	return &more, f.contents
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
	case f.contents != undecidedContents:
	case v.decision.Verdict == policy.Inspect:
		f.contents = inspected
	default:
		f.contents = opaque
	}
	if f.contents == inspected && r.TLS != nil {
		hello := *r.TLS
		hello.Inspected = true
		settled.TLS = &hello
	}
	f.request = &settled
	return nil, false
}

// noteRefusal counts and records what Narrow refuses, beside the close record to come. Nobody
// else writes to the flow: what is refused is not decided again.
func (f *Flow) noteRefusal(ctx context.Context, r *policy.Request) *Refusal {
	asked := f.listQuestion(ctx, r)
	f.noteDenial()
	if s := f.sighted(); s != nil {
		f.sight(*s)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if asked != nil && !f.closed {
		f.decision = asked
	}
	f.keepDenial()
	return f.refusal(*f.decision)
}

// current returns nil while the flow may go on. It decides again where the
// policy in force is no longer the one that decided; a flow that was refused,
// cut or closed stays so.
func (f *Flow) current(ctx context.Context) *Refusal {
	for {
		f.mu.Lock()
		due, refusal := f.due()
		request, decision, inside := f.request, f.decision, f.contents
		f.mu.Unlock()
		if !due {
			return refusal
		}
		again := *request
		again.Usage = nil
		v := f.askPolicy(ctx, &again, inside)
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
			return refusal
		}
	}
}

// due reports whether the policy has to decide the flow again. A refusal says that the flow
// may not go on, whatever the policy says. f.mu is held.
func (f *Flow) due() (due bool, refusal *Refusal) {
	switch {
	case f.gate.shut.Load():
		return false, f.refusal(stopping)
	case f.gate.Attachments.left(&f.request.Sandbox):
		return false, f.refusal(gone)
	case f.closed || f.wasCut || !passes(f.decision.Verdict):
		return false, f.refusal(*f.decision)
	}
	return f.policy != f.gate.policy.Load() || f.decision.Question != "" && !f.gate.Approvals.AllApply(f.decision.Question, f.id), nil
}

// AnyProtocol reports whether a rule lets the flow carry what is neither TLS
// nor HTTP on the web's ports.
func (f *Flow) AnyProtocol() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decision.AnyProtocol
}

// Budget is how many bytes of payload may go to the upstream, as the policy in
// force has it: see [policy.Decision].MaxBytesUp. 0 means any number.
func (f *Flow) Budget() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decision.MaxBytesUp
}

// Credential names the rule whose credential is to be added to the flow's
// request, and the digest of the policy that says so. rule is empty where none
// is.
func (f *Flow) Credential() (rule, digest string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decision.Inject, f.decision.Policy
}

// SetFields are those of the policy that decided: see [policy.Policy.SetFields].
func (f *Flow) SetFields() []policy.SetField {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.policy.SetFields(f.request.Destination)
}

// Inspected reports whether the policy lets the flow's tunnel be only if every
// request in it is decided: its TLS has to end in egressd. The answer counts
// once Narrow has put the ClientHello to the policy, and does not change after that.
func (f *Flow) Inspected() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.contents != undecidedContents {
		return f.contents == inspected
	}
	return f.decision.Verdict == policy.Inspect
}

// compare asks the shadow policy about r before the record is written. It may block, and the caller must be the only user
// of the flow.
func (f *Flow) compare(ctx context.Context, r *policy.Request) {
	f.decision = f.comparedTo(ctx, verdict{f.policy, f.decision}, r)
}

// comparedTo is the decision of v, with what the shadow of its policy says of r where that differs.
func (f *Flow) comparedTo(ctx context.Context, v verdict, r *policy.Request) *policy.Decision {
	if v.policy.Shadow() == nil {
		return v.decision
	}
	return f.gate.shared.of(v.policy.Compare(ctx, f.gate.Approvals.apply(f.id, r), *v.decision, f.gate.tasks.start))
}

// denied compares what the policy refuses, and records it.
func (f *Flow) denied(ctx context.Context) *Refusal {
	f.compare(ctx, f.request)
	return f.refuse(*f.decision)
}

// failed records that what was allowed did not come about.
func (f *Flow) failed(ctx context.Context, class policy.Class) *Refusal {
	f.compare(ctx, f.request)
	if refusal := f.recordDecision(); refusal != nil {
		return refusal
	}
	f.recordEnd(End{Outcome: record.Outcome(class)})
	return f.networkRefusal(class)
}

// sharedDecisions keeps one copy of each decision that allows: thousands of tunnels
// stand on the same few rules. It is safe for concurrent use.
type sharedDecisions struct {
	mu    sync.Mutex
	known map[decisionKey]*policy.Decision
}

// A decisionKey has every field of a decision that allows. Two decisions with the same key are
// one: a field that is missing here, such as Inject, would be another decision's.
type decisionKey struct {
	rule, reason, cause string
	policy              string
	question, source    string
	layer               policy.Layer
	verdict             policy.Verdict
	needs               policy.Needs
	anyProtocol, ech    bool
	upgrade             bool
	inject, set         string
	maxBytesUp          int64
	budgetRule          string
	budgetLayer         policy.Layer
	log                 bool
}

const decisionsMost = 1024

// of returns d, or an equal decision that other flows share. Denials are not shared: a sandbox could fill the table
// with them.
func (s *sharedDecisions) of(d policy.Decision) *policy.Decision {
	if d.Shadow != nil || d.Missed != nil || d.Class != "" || d.Ref != "" || d.AddressClass != "" || len(d.AllowedIf) > 0 {
		own := d
		return &own
	}
	key := decisionKey{d.Rule, d.Reason, d.Cause, d.Policy, d.Question, d.Source, d.Layer, d.Verdict, d.Needs, d.AnyProtocol, d.ECH, d.Upgrade, d.Inject, d.Set, d.MaxBytesUp, d.BudgetRule, d.BudgetLayer, d.Log}
	s.mu.Lock()
	defer s.mu.Unlock()
	if same := s.known[key]; same != nil {
		return same
	}
	if s.known == nil || len(s.known) >= decisionsMost {
		s.known = map[decisionKey]*policy.Decision{}
	}
	own := d
	s.known[key] = &own
	return &own
}
