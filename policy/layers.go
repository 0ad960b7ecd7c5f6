package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// A Ceiling is an evaluator that is asked what may be opened: allow, or inspect
// where it depends on the request. Everything else, errors too, keeps it shut.
type Ceiling struct {
	Evaluator Evaluator
	Layer     Layer // who wrote it
}

func (c *Ceiling) hold(ctx context.Context, r *Request, d Decision) Decision {
	room := heard(ctx, c.Evaluator, r.unapproved()) // an answer opens nothing that is not let be opened
	if room.Missed != nil {
		room.AllowedIf = room.Missed.AllowedIf
	}
	switch {
	case room.Verdict == Allow, room.Verdict == Inspect:
		room.AnyProtocol, room.ECH, room.Inject = d.AnyProtocol, d.ECH, "" // it is about requests alone
		return combine(d, room)
	case room.Class == PolicyError:
		return combine(d, room)
	}
	return combine(d, Decision{
		Class: RuleDeny, Rule: "ceiling", Layer: c.Layer, AllowedIf: room.AllowedIf,
		Reason: fmt.Sprintf("%s is outside of what the ceiling lets be opened", whatTo(r)),
	})
}

// A sandboxLayer narrows what the rest of the policy allows to some sandboxes.
// It opens nothing: where it agrees, it has no opinion.
type sandboxLayer struct {
	listedSandboxes[*rules]
	observed listedSandboxes[*Observation]
	baseline *Baseline
}

// unlisted is the key for sandboxes that no file lists: those named when their network
// was attached. It is used only if the file has no list of sandboxes.
const unlisted = ""

// Evaluate denies a sandbox that the policy does not list, such as one that a reload
// removed. A request without a sandbox, as in a policy test, is left to the other layers.
func (l sandboxLayer) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	own := l.rulesOf(&r.Sandbox)
	switch {
	case r.Sandbox.Name == "":
		return Decision{Verdict: Abstain}, nil
	case own == nil:
		return Decision{Class: RuleDeny, Rule: "sandboxes", Layer: PerSandbox, Reason: "the policy does not list this sandbox"}, nil
	}
	if relaxed := l.relaxed(r); relaxed != nil {
		own = relaxed
	}
	d, err := own.Evaluate(ctx, r)
	if d.Verdict == Allow && !d.Upgrade && r.HTTP != nil && r.HTTP.Upgrade {
		return noWebSocket(r, d.Rule, PerSandbox), err
	}
	return restricting(d), err
}

// Probe implements [prober].
func (l sandboxLayer) Probe(ctx context.Context, r *Request, p *Probes) {
	if own := l.rulesOf(&r.Sandbox); own != nil {
		own.Probe(ctx, r, p)
	}
}

// rulesOf returns the list of a sandbox, or nil where the policy does not know it.
func (l sandboxLayer) rulesOf(who *Sandbox) *rules {
	if own := l.of(who.Name); own != nil || who.Attachment == 0 {
		return own
	}
	return l.named[unlisted]
}

// A Narrowing is an opinion on one sandbox.
type Narrowing struct {
	Evaluator Evaluator

	// Exhaustive says that the sandbox reaches nothing but what Evaluator allows.
	Exhaustive bool
}

func (n *Narrowing) narrow(ctx context.Context, r *Request) Decision {
	d := heard(ctx, n.Evaluator, r)
	switch {
	case d.Missed != nil && n.Exhaustive:
		return *d.Missed
	case d.Verdict == Abstain && n.Exhaustive:
		return Decision{
			Class: DefaultDeny, Rule: "rego", Layer: PerSandbox, AllowedIf: d.AllowedIf, // a line of a list would not help
			Reason: fmt.Sprintf("no rule of this sandbox allows %s", whatTo(r)),
		}
	case d.Verdict == Allow && n.Exhaustive && !d.Upgrade && r.HTTP != nil && r.HTTP.Upgrade:
		return noWebSocket(r, d.Rule, PerSandbox)
	}
	return restricting(d)
}

// noWebSocket refuses a WebSocket that a rule would allow if it were another request.
func noWebSocket(r *Request, rule string, layer Layer) Decision {
	return Decision{
		Class: UpgradeDenied, Rule: rule, Layer: layer, AllowedIf: []string{"rule " + rule + " says upgrade: websocket"},
		Reason: fmt.Sprintf("rule %s allows requests to %s, but no WebSocket: it does not say upgrade: websocket", rule, r.Destination),
	}
}

// narrowLayer is what further opinions say about the sandboxes that they are for.
type narrowLayer struct{ listedSandboxes[[]Narrowing] }

// Evaluate asks about nobody's request nothing.
func (l narrowLayer) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	d := Decision{Verdict: Abstain}
	for _, n := range l.of(r.Sandbox.Name) {
		d = combine(d, n.narrow(ctx, r))
	}
	return d, nil
}

// Probe implements [prober].
func (l narrowLayer) Probe(ctx context.Context, r *Request, p *Probes) {
	for _, n := range l.of(r.Sandbox.Name) {
		probe(ctx, r, []Evaluator{n.Evaluator}, p)
	}
}

// ReadsUsage reports whether any of them does.
func (l narrowLayer) ReadsUsage() bool {
	for _, all := range l.named {
		if slices.ContainsFunc(all, func(n Narrowing) bool { return readsUsage(n.Evaluator) }) {
			return true
		}
	}
	return false
}

// projectLayer is what projects say about the requests of their sandboxes.
type projectLayer map[string]*openProject

type openProject struct {
	evaluators []Evaluator
	opens      bool
}

// Evaluate takes from a project what it may not give, whoever made its evaluators.
func (l projectLayer) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	own := l[r.Sandbox.Name]
	if own == nil {
		return Decision{Verdict: Abstain}, nil
	}
	d, _ := hear(ctx, r, own.evaluators)
	if !own.opens {
		return restricting(d), nil
	}
	d.AnyProtocol, d.ECH, d.Inject = false, false, ""
	return d, nil
}

// Probe implements [prober].
func (l projectLayer) Probe(ctx context.Context, r *Request, p *Probes) {
	if own := l[r.Sandbox.Name]; own != nil {
		probe(ctx, r, own.evaluators, p)
	}
}

// ReadsUsage reports whether any of them does.
func (l projectLayer) ReadsUsage() bool {
	for _, own := range l {
		if slices.ContainsFunc(own.evaluators, readsUsage) {
			return true
		}
	}
	return false
}

func (l projectLayer) opening() []Evaluator { return l.that(true) }

// closed are those that do not.
func (l projectLayer) closed() []Evaluator { return l.that(false) }

func (l projectLayer) that(opens bool) []Evaluator {
	some := maps.Clone(l)
	maps.DeleteFunc(some, func(_ string, p *openProject) bool { return p.opens != opens })
	if len(some) == 0 {
		return nil
	}
	return []Evaluator{some}
}

// promptRules bounds the rules for one host in a list that is evaluated at once. The evaluator
// compares a request with each rule of its host, and again for each resolved address and alias.
const promptRules = 256

// allShort reports whether no list of evaluators has more rules for one host than promptRules.
func allShort(evaluators []Evaluator) bool {
	for _, e := range evaluators {
		switch e := e.(type) {
		case *rules:
			if e.longest() > promptRules {
				return false
			}
		case sandboxLayer:
			for _, own := range e.named {
				if own.longest() > promptRules {
					return false
				}
			}
		case projectLayer:
			for _, own := range e {
				if !allShort(own.evaluators) {
					return false
				}
			}
		}
	}
	return true
}
