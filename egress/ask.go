package egress

import (
	"context"
	"time"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// AskPeople says whether there is somebody who can answer what the policy asks, and for how
// long a flow is held until then; for 0 none is. Before it was called nobody can, and what
// would have to be asked is refused.
func (g *Gate) AskPeople(can bool, wait time.Duration) {
	g.desk.wait.Store(int64(wait))
	g.desk.open.Store(can)
	g.desk.look()
}

// decideAsking is decide where one can wait: for a person, where the policy asks one. ctx is
// for that alone, and ends it where the client has left. late is until when the flow waits in
// all: the first wait sets it.
func (f *Flow) decideAsking(ctx context.Context, r *policy.Request, late *time.Time) *Refusal {
	refusal := f.decide(context.WithoutCancel(ctx), r)
	switch {
	case refusal == wouldWait || !f.mayAsk():
		return refusal
	case f.hurried:
		return wouldWait
	case late.IsZero():
		*late = time.Now().Add(time.Duration(f.gate.desk.wait.Load()))
	}
	return f.askAll(ctx, r, refusal, *late)
}

// mayAsk reports whether the decision is one that a person can make.
func (f *Flow) mayAsk() bool { return f.decision.Verdict == policy.Ask && f.gate.desk.open.Load() }

// askAll asks one question after the other until the policy asks no more. A new policy in
// force is no answer: it takes none of the questions that a flow may bring up.
func (f *Flow) askAll(ctx context.Context, r *policy.Request, refusal *Refusal, late time.Time) *Refusal {
	var t *ticket
	defer func() { t.leave() }()
	for rounds := 0; rounds < askRounds && f.mayAsk(); {
		var d *policy.Decision
		if t, d = f.bringUp(ctx, r, t, true); d == nil {
			d = f.ask(ctx, t, late)
		}
		if d != nil {
			f.decision = d
			return f.refusal(*d)
		}
		if f.policy == f.gate.policy.Load() || !time.Now().Before(late) {
			rounds++
		}
		refusal = f.decide(context.WithoutCancel(ctx), r)
	}
	return refusal
}

// ask waits until a person has answered, and returns nil once the policy is to decide again,
// or the refusal.
func (f *Flow) ask(ctx context.Context, t *ticket, late time.Time) *policy.Decision {
	asked := *f.decision
	asked.Question = t.q.id.String()
	timeout := time.NewTimer(time.Until(late))
	defer timeout.Stop()
	for {
		state, until, held, changed := t.look()
		switch {
		case ctx.Err() != nil:
			return unanswered(asked, policy.AskTimeout, clientLeft)
		case f.policy != f.gate.policy.Load(), state == askApproved:
			return nil
		case state == askRejected:
			return unanswered(asked, policy.AskRejected, "; a person has rejected that until "+until.UTC().Format(time.TimeOnly)+" UTC")
		case !f.gate.desk.open.Load():
			return unanswered(asked, policy.AskRejected, nobodyAnswers)
		case state == askGone || !held:
			return unanswered(asked, policy.AskPending, "; nobody has answered yet")
		}
		select {
		case <-changed:
		case <-timeout.C:
			return unanswered(asked, policy.AskTimeout, "; nobody has answered in time")
		case <-ctx.Done():
			return unanswered(asked, policy.AskTimeout, clientLeft)
		case <-f.gate.life.Done():
			d := stopping
			d.Policy = asked.Policy
			return &d
		}
	}
}

// bringUp brings the flow to its question, and records one that is new, or returns why it
// cannot be asked. The flow stays at t, where it waits still, and leaves it for another.
func (f *Flow) bringUp(ctx context.Context, r *policy.Request, t *ticket, hold bool) (*ticket, *policy.Decision) {
	calm := context.WithoutCancel(ctx)
	k := f.askKey(calm, r)
	if t.waitsFor(&k) {
		return t, nil
	}
	t.leave()
	if len(k.method) > record.MaxMethod || len(k.path) > record.MaxPath {
		return nil, unanswered(*f.decision, policy.AskRejected, "; it is too long to be shown to anybody")
	}
	t = f.gate.desk.come(k, f.gate.ids.next(time.Now()), f.id, r, f.decision.Reason, hold)
	switch {
	case t == nil:
		return nil, unanswered(*f.decision, policy.AskPending, "; too much else of this sandbox is being asked already")
	case t.new && f.recordQuestion(t.q.id, r) != nil:
		t.leave()
		f.gate.desk.drop(t.q.id)
		return nil, &unavailable
	}
	if p := f.gate.policy.Load(); t.new && p != f.policy {
		f.gate.reviewOne(calm, p, t.q) // the review of that policy may have been before
	}
	return t, nil
}

// askLater has what the policy asks once a tunnel stands be listed, and returns its refusal, or
// nil where nobody can be asked: what is first known then is not held. A person can answer before
// the client comes again. Nothing else may write to the flow meanwhile.
func (f *Flow) askLater(ctx context.Context, r *policy.Request) *policy.Decision {
	if !f.mayAsk() {
		return nil
	}
	t, d := f.bringUp(ctx, r, nil, false)
	if d != nil {
		return d
	}
	asked := *f.decision
	asked.Question = t.q.id.String()
	if state, _, _, _ := t.look(); state == askRejected {
		return unanswered(asked, policy.AskRejected, "; a person has rejected that")
	}
	return unanswered(asked, policy.AskPending, "; nobody has answered yet")
}

// askKey is what is to be answered: whether such a request may be made, or, where the rule
// asks whatever the request is, whether the place may be reached.
func (f *Flow) askKey(ctx context.Context, r *policy.Request) askKey {
	k := askKey{
		sandbox: r.Sandbox.Name, stay: r.Sandbox.Stay, layer: f.decision.Layer, rule: f.decision.Rule,
		host: r.Destination.Host, port: r.Destination.Port,
	}
	if r.HTTP == nil {
		return k
	}
	any := *f.approved(r)
	any.HTTP = nil
	if d := f.policy.Decide(ctx, &any); d.Verdict != policy.Ask || d.Rule != k.rule || d.Layer != k.layer {
		k.method, k.path = r.HTTP.Method, r.HTTP.Path
	}
	return k
}

// recordQuestion records that a person is asked. What passes by the answer is recorded after it.
func (f *Flow) recordQuestion(id ID, r *policy.Request) error {
	d := *f.decision
	d.Question = id.String()
	asked := &Flow{gate: f.gate, id: id, began: f.began, src: f.src, request: r, decision: &d}
	kind := record.KindOpen
	if r.HTTP != nil {
		kind = record.KindRequest
	}
	_, err := asked.append(recordOf{kind: kind})
	return err
}

// clientLeft is why what nobody waits for any more is not done, also where it was approved then.
const clientLeft = "; the client left before anybody had answered"

// nobodyAnswers is why what the policy asks is refused at once.
const nobodyAnswers = "; nobody can answer: people are asked by egressd serve with a listen.admin"

// unanswered is the refusal of what the policy asks.
func unanswered(d policy.Decision, class policy.Class, why string) *policy.Decision {
	d.Class = class
	d.Reason = clipped(d.Reason, record.MaxReason-len(why)) + why
	return &d
}

func clipped(s string, most int) string { return s[:min(len(s), max(most, 0))] }

// asks says what becomes of what the policy asks and nobody has answered.
func (f *Flow) asks(d policy.Decision, r *policy.Request) policy.Decision {
	switch {
	case d.Verdict != policy.Ask:
		return d
	case r.DNS != nil:
		return *unanswered(d, policy.AskRejected, "; nobody is asked about a name by itself: go through the proxy")
	case !f.gate.desk.open.Load():
		return *unanswered(d, policy.AskRejected, nobodyAnswers)
	}
	d.Class = policy.AskPending
	return d
}

// approved is r with what a person has approved of it.
func (f *Flow) approved(r *policy.Request) *policy.Request {
	all := f.gate.desk.approvals(f.id, r)
	if all == nil {
		return r
	}
	c := *r
	c.Approved = all
	return &c
}

// lapsed reports whether the flow stands on an answer that does not count any more. f.mu is held.
func (f *Flow) lapsed() bool {
	return f.decision.Question != "" && !f.gate.desk.stand(f.decision.Question, f.id)
}

// lapse cuts the flows that cannot do without an answer that has ended.
func (g *Gate) lapse(ID) {
	for _, f := range g.openFlows() {
		f.mu.Lock()
		stands := f.decision.Question == ""
		f.mu.Unlock()
		if !stands && f.current(context.Background()) != nil {
			f.cut()
		}
	}
}

// review forgets the questions that the policy does not ask any more, and the answers to
// them, and has the flows that wait ask it again.
func (g *Gate) review(ctx context.Context, p *policy.Policy) {
	all, _, _, _ := g.desk.all()
	for _, q := range all {
		g.reviewOne(ctx, p, q)
	}
	g.desk.look()
}

// reviewOne forgets a question that p does not ask, whatever is answered to the others that p
// asks of its request: which of those answers count now says nothing about this one.
func (g *Gate) reviewOne(ctx context.Context, p *policy.Policy, q *question) {
	r := q.request
	r.Time = time.Now()
	for range othersMost {
		d := p.Decide(ctx, &r)
		switch {
		case d.Verdict != policy.Ask:
			g.desk.drop(q.id)
			return
		case d.Rule == q.key.rule && d.Layer == q.key.layer:
			return
		}
		r.Approved = append(r.Approved, policy.Approval{Layer: d.Layer, Rule: d.Rule, Question: q.id.String()})
	}
	g.desk.drop(q.id)
}
