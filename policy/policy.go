// Package policy holds what a sandbox may reach: the nouns that every other package speaks in, rules, the baseline of
// addresses that only exceptions and unsafe_allow open, and Decide, the only place where anything is allowed.
//
// It does no I/O, knows no protocol, and repairs nothing: text from outside becomes a canonical type in
// [ParseDestination], or an error. Package policy/file reads rule files.
//
//	p := policy.New(policy.NewBaseline(options), rules)
//	d := p.Decide(ctx, &policy.Request{Destination: dst, …})
package policy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// A Policy is the immutable whole that is asked. Its zero value, and a nil
// Policy, deny everything. It is safe for concurrent use.
type Policy struct {
	evaluators []Evaluator
	baseline   *Baseline   // one of evaluators, or nil
	below      []Evaluator // those of the layers below the organisation, where they are apart
	ceilings   []Ceiling   // what evaluators of below, and the default, may open
	narrowing  []Evaluator // those that open nothing, not even by asking
	fallback   Verdict     // Deny, or Allow where the operator wrote "default: allow"
	observed   observations
	ech        bool // the operator wrote "ech: allow" for the whole file
	inspection bool
	never      *index // tunnels that are not looked into; nil where there are none
	digest     string
	slow       bool    // an evaluator may take longer than some microseconds
	shadow     *shadow // asked beside it; nil where none is
	setting    []*Rule // with fields that requests to their hosts have
	parts      *Parts  // that it was assembled from, or nil
	identity   *identity
}

// New returns a policy of the given evaluators that denies what none of them
// allows. Adding an evaluator never loosens what another has an opinion on, and
// their order never matters.
func New(evaluators ...Evaluator) *Policy {
	p := &Policy{evaluators: evaluators, digest: digestOf(nil)}
	for _, e := range evaluators {
		if b, ok := e.(*Baseline); ok {
			p.baseline = b
		}
	}
	return p
}

// Digest identifies the policy's text: "sha256:" and 64 hexadecimal digits.
func (p *Policy) Digest() string {
	if p == nil {
		return ""
	}
	return p.digest
}

// AnswersAtOnce reports whether Decide answers within microseconds.
func (p *Policy) AnswersAtOnce() bool { return p == nil || !p.slow }

// short reports whether all lists of p are evaluated within microseconds.
func (p *Policy) short() bool {
	ceilings := make([]Evaluator, len(p.ceilings))
	for i, c := range p.ceilings {
		ceilings[i] = c.Evaluator
	}
	return allShort(p.evaluators) && allShort(p.below) && allShort(p.narrowing) && allShort(ceilings)
}

// ReadsUsage reports whether an evaluator of the policy, or of its shadow, looks at
// [Request].Usage, which has to be filled in then.
func (p *Policy) ReadsUsage() bool {
	if p == nil {
		return false
	}
	ceiling := func(c Ceiling) bool { return readsUsage(c.Evaluator) }
	return p.Shadow().ReadsUsage() || slices.ContainsFunc(p.evaluators, readsUsage) ||
		slices.ContainsFunc(p.below, readsUsage) || slices.ContainsFunc(p.narrowing, readsUsage) || slices.ContainsFunc(p.ceilings, ceiling)
}

// Decide asks every evaluator and combines their verdicts by minimum. It is
// the only place where anything is allowed: an error, a verdict
// that does not exist, and silence of all evaluators deny, unless the operator chose
// "default: allow" for the last.
func (p *Policy) Decide(ctx context.Context, r *Request) Decision {
	if p == nil {
		return Decision{Class: PolicyNotLoaded, Rule: "none", Layer: Builtin, Reason: "no policy is loaded"}
	}
	if r.DNS != nil {
		return p.decideName(ctx, r)
	}
	d, looks := p.judge(ctx, r)
	if d.Verdict == Allow && d.Needs != 0 && (r.HTTP == nil || r.HTTP.lacks(d.Needs)) {
		d.Verdict = Inspect
	}
	if d.Verdict != Deny && d.exceededBy(r.HTTP) {
		most := d.MaxBytesUp
		d = d.OverBudget()
		d.AllowedIf = []string{fmt.Sprintf("its body has at most %d bytes", most)}
	}
	looks = r.HTTP == nil && (looks || d.Needs != 0)
	if d.Verdict != Deny && looks && !p.inspects(&r.Destination) {
		d = p.withoutInspection(d, r)
	}
	if d.Verdict != Deny {
		d = agree(d, r, looks)
	}
	if d.Verdict == Allow && r.HTTP != nil && r.HTTP.OtherProtocol && !p.passesUnread(ctx, r) {
		d = noUpgrade(d, r)
	}
	d.Policy = p.digest
	if d.Verdict >= Inspect {
		d.Set = setText(p.SetFields(r.Destination))
	} else {
		d.Question = "" // it stands on none that was answered
	}
	return d
}

// passesUnread reports whether r's destination allows a tunnel that is not inspected.
func (p *Policy) passesUnread(ctx context.Context, r *Request) bool {
	tunnel := *r
	tunnel.HTTP = nil
	d, looks := p.judge(ctx, &tunnel)
	return d.Verdict == Allow && !looks && d.Needs == 0
}

// noUpgrade refuses a change of protocol that d would allow without the change.
func noUpgrade(d Decision, r *Request) Decision {
	refused := refuseClaim(d, UpgradeDenied, fmt.Sprintf("the rules judge requests to %s, and what comes behind a change of protocol (Upgrade) are none that they could judge", r.Destination))
	refused.AllowedIf = []string{"rules allow " + r.Destination.String() + " without conditions on requests"}
	return refused
}

// decideName decides a question for a name. The name may be resolved where all layers let
// the same port and the same method pass, also of the hosts that it leads to. Paths are not
// tried, and Rego does not see the method.
func (p *Policy) decideName(ctx context.Context, r *Request) Decision {
	at := *r
	var refused Decision
	told := false           // refused says what the name leads to, not that it is shut
	at.Destination.Port = 0 // the rules of every port
	probes := p.probes(ctx, &at)
	for i, port := range probes.Ports {
		at.Destination.Port = port
		d := p.tryMethods(ctx, &at, probes.Methods)
		d.Policy = p.digest
		if d.Verdict >= Inspect {
			d.Verdict, d.Needs, d.AllowedIf, d.Inject = Allow, 0, nil, ""
			return d
		}
		tells := !told && p.opensName(ctx, &at, probes.Methods)
		if i == 0 || tells || d.Verdict > refused.Verdict {
			refused, told = d, told || tells
		}
	}
	refused.Needs, refused.Question = 0, ""
	return refused
}

// tryMethods decides a question at one port. If that depends on the method, all layers
// have to let the same one pass.
func (p *Policy) tryMethods(ctx context.Context, r *Request, methods []string) Decision {
	d, _ := p.judge(ctx, r)
	if d.Verdict < Inspect || d.Needs&NeedsMethod == 0 {
		return d
	}
	question, tried, refused := *r.DNS, *r, d
	tried.DNS = &question
	for _, question.method = range methods {
		if refused, _ = p.judge(ctx, &tried); refused.Verdict >= Inspect {
			return d
		}
	}
	return refused
}

// opensName reports whether r would pass but for what its destination leads to.
func (p *Policy) opensName(ctx context.Context, r *Request, methods []string) bool {
	if len(r.Destination.Addrs)+len(r.Destination.Aliases) == 0 {
		return false
	}
	bare := *r
	bare.Destination.Addrs, bare.Destination.Aliases = nil, nil
	d := p.tryMethods(ctx, &bare, methods)
	return d.Verdict >= Inspect
}

// probes are those of all layers, and the ports of the web first.
func (p *Policy) probes(ctx context.Context, r *Request) (all Probes) {
	all.Ports = append(make([]uint16, 0, 16), 443, 80, 1)
	all.Methods = []string{"any other"} // that no rule names
	for _, some := range [][]Evaluator{p.evaluators, p.below, p.narrowing} {
		probe(ctx, r, some, &all)
	}
	for _, c := range p.ceilings {
		probe(ctx, r, []Evaluator{c.Evaluator}, &all)
	}
	slices.Sort(all.Ports[2:])
	slices.Sort(all.Methods)
	all.Ports, all.Methods = slices.Compact(all.Ports), slices.Compact(all.Methods)
	return all
}

// judge asks all layers about a request. If a name resolves to a special-purpose address,
// a rule for that address must allow the same request: an exception opens only the address
// that it names. looks says that an opinion depends on the requests inside the tunnel.
func (p *Policy) judge(ctx context.Context, r *Request) (d Decision, looks bool) {
	d, looks = p.ask(ctx, r)
	if p.baseline == nil || d.Verdict == Deny {
		return d, looks
	}
	dst := &r.Destination
	for _, addr := range dst.Addrs {
		if addr != dst.Addr && p.baseline.special(addr) {
			addr = addr.Unmap().WithZone("")
			d, looks = p.judgeLed(ctx, r, Destination{Host: addr.String(), Addr: addr, Addrs: []netip.Addr{addr}}, d, looks)
		}
	}
	for _, alias := range dst.Aliases {
		if classOfName(alias) != "" {
			d, looks = p.judgeLed(ctx, r, Destination{Host: alias, Addrs: dst.Addrs}, d, looks)
		}
	}
	return d, looks
}

// judgeLed combines d with the decision on r where to is asked for instead. Approvals of r
// do not count for to, and egressd asks nobody about to.
func (p *Policy) judgeLed(ctx context.Context, r *Request, to Destination, d Decision, looks bool) (Decision, bool) {
	direct := *r.unapproved()
	to.Port = r.Destination.Port
	direct.Destination = to
	led, more := p.ask(ctx, &direct)
	led.Inject = ""      // the credential of another host
	switch led.Verdict { // the sandbox is not told where its name leads
	case Deny:
		led.Reason = whereTo(r) + " leads to a host that this request may not reach by itself"
	case Ask:
		led.Verdict, led.Class = Deny, AskRejected
		led.Reason = whereTo(r) + " leads to a host that needs an approval of its own, which an approval of " + r.Destination.Host + " is not"
	}
	return combine(d, led), looks || more
}

// ask puts a request to all layers.
func (p *Policy) ask(ctx context.Context, r *Request) (d Decision, looks bool) {
	d, looks = hear(ctx, r, p.evaluators)
	d, more := p.hearBelow(ctx, r, d)
	narrower, most := hear(ctx, r, p.narrowing) // last: a question about what nobody opens is none
	return p.observed.mark(ctx, r, combine(d, narrower)), looks || more || most
}

// hear combines what evaluators say about a request. looks says that one of them
// has to see what is in a tunnel.
func hear(ctx context.Context, r *Request, evaluators []Evaluator) (d Decision, looks bool) {
	d = Decision{Verdict: Abstain}
	for _, e := range evaluators {
		opinion := heard(ctx, e, r)
		looks = looks || opinion.Verdict == Inspect
		d = combine(d, opinion)
	}
	return d, looks
}

// heard turns errors and unknown verdicts into denials. It also denies an Inspect of a request of which all
// that it needs is known, because no later stage would decide the request.
func heard(ctx context.Context, e Evaluator, r *Request) Decision {
	d, err := e.Evaluate(ctx, r)
	switch {
	case err != nil:
		return failed(err.Error())
	case d.Verdict > Abstain, d.Verdict == Inspect && r.HTTP != nil && !r.HTTP.lacks(d.Needs):
		return failed("it has no verdict about a complete request")
	}
	return d
}

// failed is the decision of an evaluator that could not be asked. cause says why.
func failed(cause string) Decision {
	return Decision{Class: PolicyError, Rule: "policy-error", Layer: Builtin, Reason: "the policy could not be evaluated", Cause: cause}
}

// hearBelow combines what the layers below the organisation say, the default among
// them, with what the organisation said. Where the organisation itself allows, no
// ceiling is asked: a ceiling is about what others open.
func (p *Policy) hearBelow(ctx context.Context, r *Request, above Decision) (d Decision, looks bool) {
	below, looks := hear(ctx, r, p.below)
	if above.Verdict != Abstain {
		return combine(above, below), looks
	}
	if below.Verdict == Abstain {
		below = combine(p.byDefault(r, cmp.Or(above.Missed, below.Missed)), below)
	}
	if below.Verdict != Deny || below.unmentioned() {
		for _, c := range p.ceilings {
			under := c.hold(ctx, r, below)
			looks = looks || under.Verdict == Inspect
			below = under
		}
	}
	return combine(above, below), looks
}

// byDefault decides what nobody has an opinion on. missed is [Decision.Missed] of the abstentions.
func (p *Policy) byDefault(r *Request, missed *Decision) Decision {
	if p.fallback == Allow {
		return Decision{Verdict: Allow, Rule: "default", Layer: User, Reason: "the default is allow", ECH: p.ech, Upgrade: true}
	}
	if p.observed.counts(r.Sandbox.Name) {
		return Decision{Verdict: Allow, Rule: LearnRule, Layer: User, Reason: "no rule speaks of " + whereTo(r) + ", which is let pass to be learned", ECH: p.ech, Upgrade: true}
	}
	if missed != nil {
		return *missed
	}
	return Decision{Class: DefaultDeny, Rule: "default", Layer: Builtin, Reason: "no rule allows " + whereTo(r)}
}

// inspects reports whether a tunnel to d can be looked into, judged by the host
// that was asked for alone.
func (p *Policy) inspects(d *Destination) bool { return p.inspection && !p.never.covers(d) }

// withoutInspection refuses what depends on a request that will not be seen.
func (p *Policy) withoutInspection(d Decision, r *Request) Decision {
	d.Verdict, d.Class = Deny, MethodDenied
	if d.Needs&(NeedsMethod|NeedsPath) == NeedsPath {
		d.Class = PathDenied
	}
	d.Reason = fmt.Sprintf("whether a request to %s is allowed, or what is added to it, depends on the request, and ", r.Destination)
	if p.inspection {
		d.Reason += "tls.never keeps egressd from looking into the tunnel"
	} else {
		d.Reason += "a tunnel does not show it"
	}
	return d
}

// WithShadow returns a policy that decides as p does, and has other asked beside
// it by [Policy.Compare]. It is not [Policy.AnswersAtOnce].
func (p *Policy) WithShadow(other *Policy) *Policy {
	both := *p
	both.shadow = &shadow{policy: other, room: make(chan struct{}, shadowRoom)}
	both.slow = true
	return &both
}

// Shadow returns the policy that is asked beside p, or nil.
func (p *Policy) Shadow() *Policy {
	if p == nil || p.shadow == nil {
		return nil
	}
	return p.shadow.policy
}

// Compare asks the shadow about a request of which p has decided d, and returns
// d, with d.Shadow set where the shadow would have decided otherwise. It takes a
// tenth of a second at most; a shadow that fails, panics or has not answered by
// then counts as one that denies with [PolicyError]. ctx only lends its values:
// whoever asked may have gone. Without a shadow, Compare returns d.
//
// start runs a function on a goroutine of the caller's, which may go on for longer.
func (p *Policy) Compare(ctx context.Context, r *Request, d Decision, start func(func())) Decision {
	if p == nil || p.shadow == nil {
		return d
	}
	if said := p.shadow.ask(ctx, r, start); d.Differs(&said) {
		d.Shadow = &said
	}
	return d
}

// agree refuses an otherwise allowed request whose claims contradict each
// other: the name asked for, the server name of the ClientHello, the server
// that the request names and the protocol on the wire have to agree.
// looks says that some layer decides by the requests inside a tunnel.
func agree(d Decision, r *Request, looks bool) Decision {
	if r.HTTP != nil {
		if d = agreeHTTP(d, r); d.Verdict == Deny {
			return d
		}
	}
	switch r.Protocol {
	case ProtocolTLS:
		return agreeTLS(d, r, looks)
	case ProtocolOpaque:
		return agreeOpaque(d, r, looks)
	}
	return d
}

func agreeHTTP(d Decision, r *Request) Decision {
	switch request := r.HTTP; {
	case echoes(request.Method):
		return refuseClaim(d, MethodDenied, fmt.Sprintf("%s sends a request's secrets back", request.Method))
	case request.Authority != "" && request.Authority != r.Destination.String():
		return refuseClaim(d, NameMismatch, fmt.Sprintf("the request names another server than %s; if that is a proxy, egressd has to connect through it (upstream.proxy)", r.Destination))
	case request.Upgrade && !d.Upgrade:
		refused := noWebSocket(r, d.Rule, d.Layer)
		refused.Policy, refused.Log = d.Policy, d.Log
		return refused
	}
	return d
}

func agreeTLS(d Decision, r *Request, looks bool) Decision {
	hello := r.TLS
	switch {
	case hello == nil || hello.Malformed:
		return refuseClaim(d, NotTLS, "what looks like TLS holds no well-formed ClientHello")
	case hello.ECH && !d.ECH && !looks && !hello.Inspected:
		return refuseClaim(d, ECHRefused, "the ClientHello may hide another server name (ECH), and no rule says ech: allow")
	case hello.ServerName == "" && hello.NoName == "":
		if r.Destination.Addr.IsValid() {
			return d
		}
		return refuseClaim(d, NoServerName, "the ClientHello names no server")
	case hello.ServerName != r.Destination.Host:
		return refuseClaim(d, NameMismatch, fmt.Sprintf("the ClientHello names another server than %s", r.Destination.Host))
	}
	return d
}

func agreeOpaque(d Decision, r *Request, looks bool) Decision {
	web := r.Destination.Port == 443 || r.Destination.Port == 80
	switch {
	case looks:
		return refuseClaim(d, NotTLS, fmt.Sprintf("what is sent to %s is neither TLS nor HTTP, and the rules look at requests", r.Destination))
	case web && !d.AnyProtocol:
		return refuseClaim(d, NotTLS, fmt.Sprintf("what is sent to %s is neither TLS nor HTTP; to let it pass, write {host: %q, tls: any} under allow", r.Destination, r.Destination.String()))
	}
	return d
}

// echoes reports whether a method makes the server repeat what it was sent.
func echoes(method string) bool { return method == "TRACE" || method == "TRACK" }

func refuseClaim(d Decision, class Class, reason string) Decision {
	return Decision{Class: class, Rule: "baseline", Layer: Builtin, Reason: reason, Policy: d.Policy, Log: d.Log}
}
