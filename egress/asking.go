package egress

import (
	"context"
	"time"

	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const (
	maxQuestionsPerFlow = 4  // that one flow can create
	maxRulesPerRequest  = 64 // that ask about one request
)

// decideOrAsk is decide, and holds the flow while a person is asked, if the policy asks one. All waits of a flow
// together end at late, which the first wait sets. ctx ends the wait for the person, and nothing else.
func (f *Flow) decideOrAsk(ctx context.Context, r *policy.Request, late *time.Time) *Refusal {
	refusal := f.decide(context.WithoutCancel(ctx), r)
	if !f.mayAsk() {
		return refusal
	}
	if late.IsZero() {
		*late = time.Now().Add(f.gate.Approvals.Wait())
	}
	return f.askAll(ctx, r, *late, refusal)
}

// mayAsk reports whether a person can make the decision of the flow.
func (f *Flow) mayAsk() bool {
	return f.decision.Verdict == policy.Ask && f.gate.Approvals.IsOpen()
}

// askAll asks one question after another until the policy has none left. A policy change does not count against the number
// of questions of a flow.
func (f *Flow) askAll(ctx context.Context, r *policy.Request, late time.Time, refusal *Refusal) *Refusal {
	var w *approvals.Waiter
	defer func() { w.Leave() }()
	for n := 0; n < maxQuestionsPerFlow && f.mayAsk(); {
		var d *policy.Decision
		if w, d = f.join(ctx, r, w, "", late); d == nil {
			d = f.awaitAnswer(ctx, w, late)
		}
		if d != nil {
			f.decision = d
			return f.refusal(*d)
		}
		if f.policy == f.gate.policy.Load() || !time.Now().Before(late) {
			n++
		}
		refusal = f.decide(context.WithoutCancel(ctx), r)
	}
	return refusal
}

// awaitAnswer waits for an answer. It returns nil if the policy should decide again, or the refusal.
func (f *Flow) awaitAnswer(ctx context.Context, w *approvals.Waiter, late time.Time) *policy.Decision {
	asked := *f.decision
	asked.Question = w.ID.String()
	timeout := time.NewTimer(time.Until(late))
	defer timeout.Stop()
	for {
		state, until, held, changed := w.Look()
		switch {
		case ctx.Err() != nil:
			return unanswered(asked, policy.AskTimeout, clientLeft)
		case f.policy != f.gate.policy.Load(), state == approvals.Approved:
			return nil
		case state == approvals.Rejected:
			return unanswered(asked, policy.AskRejected, "; a person has rejected that until "+until.UTC().Format(time.TimeOnly)+" UTC")
		case !f.gate.Approvals.IsOpen():
			return unanswered(asked, policy.AskRejected, nobodyAnswers)
		case state == approvals.Gone || !held:
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

// join adds the flow to its question and records a new question, with words of the sandbox. The flow stays at w if that is its
// question, and leaves it otherwise. The decision is the refusal if the question cannot be asked.
func (f *Flow) join(ctx context.Context, r *policy.Request, w *approvals.Waiter, words string, late time.Time) (*approvals.Waiter, *policy.Decision) {
	calm := context.WithoutCancel(ctx)
	about := f.subject(calm, r)
	if w.WaitsFor(&about) {
		return w, nil
	}
	w.Leave()
	if len(about.Method) > record.MaxMethod || len(about.Path) > record.MaxPath {
		return nil, unanswered(*f.decision, policy.AskRejected, "; it is too long to be shown to anybody")
	}
	list := &f.gate.Approvals
	w = list.Join(about, f.gate.ids.next(time.Now()), f.id, r, f.decision.Reason, words, late)
	switch {
	case w == nil:
		return nil, unanswered(*f.decision, policy.AskPending, "; too much else of this sandbox is being asked already")
	case f.gate.Attachments.left(&r.Sandbox): // the end of its run may have missed this flow
		w.Leave()
		list.RunEnded(&r.Sandbox)
		d := gone
		d.Policy = f.decision.Policy
		return nil, &d
	case w.New && f.recordQuestion(w.ID, r, words) != nil:
		w.Leave()
		list.Remove(w.ID)
		return nil, &unavailable
	}
	if p := f.gate.policy.Load(); w.New && p != f.policy {
		list.reviewOne(calm, p, w.Question) // the review for p may have missed the new question
	}
	return w, nil
}

// listQuestion lists the question of an open tunnel without holding the flow, and returns its refusal. It returns
// nil if nobody can be asked. A person can answer before the client comes again. The caller has the flow to
// itself.
func (f *Flow) listQuestion(ctx context.Context, r *policy.Request) *policy.Decision {
	if !f.mayAsk() {
		return nil
	}
	w, d := f.join(ctx, r, nil, "", time.Time{})
	if d != nil {
		return d
	}
	asked := *f.decision
	asked.Question = w.ID.String()
	if state, _, _, _ := w.Look(); state == approvals.Rejected {
		return unanswered(asked, policy.AskRejected, "; a person has rejected that")
	}
	return unanswered(asked, policy.AskPending, "; nobody has answered yet")
}

// subject returns what the question is about: the request, or only the destination if the rule asks
// regardless of the request.
func (f *Flow) subject(ctx context.Context, r *policy.Request) approvals.Subject {
	s := approvals.Subject{
		Sandbox: r.Sandbox.Name, Layer: f.decision.Layer, Source: f.decision.Source, Rule: f.decision.Rule,
		Host: r.Destination.Host, Port: r.Destination.Port,
	}
	if r.HTTP == nil {
		return s
	}
	any := *f.gate.Approvals.apply(f.id, r)
	any.HTTP = nil
	if d := f.policy.Decide(ctx, &any); d.Verdict != policy.Ask || d.Rule != s.Rule || d.Layer != s.Layer || d.Source != s.Source {
		s.Method, s.Path = r.HTTP.Method, r.HTTP.Path
	}
	return s
}

// recordQuestion records a question under its own ID. The decision after the answer has a later record.
func (f *Flow) recordQuestion(id record.ID, r *policy.Request, words string) error {
	d := *f.decision
	d.Question = id.String()
	asked := &Flow{gate: f.gate, id: id, began: f.began, src: f.src, request: r, decision: &d}
	kind := record.KindOpen
	if r.HTTP != nil {
		kind = record.KindRequest
	}
	_, err := asked.gate.Records.append(asked, recordOf{kind: kind, note: quotedWords(words)})
	return err
}

// Reasons for refusals of questions without an answer.
const (
	clientLeft    = "; the client left before anybody had answered" // an approval after that changes nothing
	nobodyAnswers = "; nobody can answer: egressd run asks on its terminal, if it has one; a running egressd serve asks people (egressd answer), also for egressd run by listen.enter"
)

// unanswered returns d as the refusal of a question without an approval.
func unanswered(d policy.Decision, class policy.Class, why string) *policy.Decision {
	d.Class = class
	d.Reason = clipped(d.Reason, record.MaxReason-len(why)) + why
	return &d
}

func clipped(s string, limit int) string { return s[:min(len(s), max(limit, 0))] }

// classify gives d its class if d asks a person.
func (a *Approvals) classify(d policy.Decision, r *policy.Request) policy.Decision {
	switch {
	case d.Verdict != policy.Ask:
		return d
	case r.DNS != nil:
		return *unanswered(d, policy.AskRejected, "; nobody is asked about a name by itself: go through the proxy")
	case !a.IsOpen():
		return *unanswered(d, policy.AskRejected, nobodyAnswers)
	}
	d.Class = policy.AskPending
	return d
}

func (a *Approvals) apply(flow record.ID, r *policy.Request) *policy.Request {
	all := a.Of(flow, r)
	if all == nil {
		return r
	}
	c := *r
	c.Approved = all
	return &c
}

// review removes the questions that p does not ask, with their answers. Waiting flows ask p again.
func (a *Approvals) review(ctx context.Context, p *policy.Policy) {
	all, _, _, _ := a.All()
	for _, q := range all {
		a.reviewOne(ctx, p, q)
	}
	a.Wake()
}

// reviewOne removes a question that p does not ask. It assumes an approval for each other rule that asks
// about the request: the answers that count at present say nothing about q. What a sandbox asks of itself no rule asks: that
// question stays.
func (a *Approvals) reviewOne(ctx context.Context, p *policy.Policy, q *approvals.Question) {
	if q.Access != nil {
		return
	}
	r := q.Request
	r.Time = time.Now()
	if p.ReadsUsage() {
		used := a.gate.accounts.of(r.Sandbox.Name).sum(time.Since(a.gate.began))
		r.Usage = &used
	}
	for range maxRulesPerRequest {
		d := p.Decide(ctx, &r)
		switch {
		case d.Verdict != policy.Ask:
			a.Remove(q.ID)
			return
		case d.Rule == q.Subject.Rule && d.Layer == q.Subject.Layer && d.Source == q.Subject.Source:
			return
		}
		r.Approved = append(r.Approved, policy.Approval{Layer: d.Layer, Source: d.Source, Rule: d.Rule, Question: q.ID.String()})
	}
	a.Remove(q.ID)
}
