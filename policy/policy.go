// Package policy holds what a sandbox may reach: the nouns that every other
// package speaks in, the rule file, the baseline of addresses that no rule
// opens, and Decide, the only place where anything is allowed.
//
// It does no I/O, knows no protocol, and repairs nothing: text from outside
// becomes a canonical type in [ParseDestination] and [ParseFile], or an error.
//
//	file, err := policy.ParseFile("egressd.yaml", text)
//	p, err := file.Compile(policy.Environment{Self: host.Addrs})
//	d := p.Decide(ctx, &policy.Request{Destination: dst, …})
package policy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// An Evaluator is one opinion inside a [Policy]. Evaluate is called from many
// goroutines at once and must not keep or change r. An error counts as Deny.
type Evaluator interface {
	Evaluate(ctx context.Context, r *Request) (Decision, error)
}

// A Policy is the immutable whole that is asked. Its zero value, and a nil
// Policy, deny everything. It is safe for concurrent use.
type Policy struct {
	evaluators []Evaluator
	baseline   *Baseline   // one of evaluators, or nil
	below      []Evaluator // those of the layers below the organisation, where they are apart
	ceilings   []Ceiling   // what evaluators of below, and the default, may open
	narrowing  []Evaluator // those that open nothing, not even by asking
	fallback   Verdict     // Deny, or Allow where the operator wrote "default: allow"
	learning   bool        // what nobody speaks of is let pass, and called learned
	ech        bool        // the operator wrote "ech: allow" for the whole file
	inspection bool
	never      *index // tunnels that are not looked into; nil where there are none
	digest     string
	slow       bool    // an evaluator may take longer than an event loop can wait
	shadow     *shadow // asked beside it; nil where none is
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

// Prompt reports whether Decide answers within microseconds, so that an event
// loop may call it.
func (p *Policy) Prompt() bool { return p == nil || !p.slow }

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
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
	if d.Verdict == Allow && d.Needs != 0 && r.HTTP == nil {
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
	d.Policy = p.digest
	if d.Verdict < Inspect {
		d.Question = "" // it stands on none that was answered
	}
	return d
}

// judge asks all layers about a request. If its destination leads to special-purpose
// hosts, they have to be open to the same request by themselves: an exception is for what
// it names. looks says that an opinion depends on what is in the tunnel.
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
			d, looks = p.judgeLed(ctx, r, Destination{Host: alias}, d, looks)
		}
	}
	return d, looks
}

// judgeLed combines d with the decision on r where to is asked for instead.
func (p *Policy) judgeLed(ctx context.Context, r *Request, to Destination, d Decision, looks bool) (Decision, bool) {
	direct := *r
	to.Port = r.Destination.Port
	direct.Destination = to
	led, more := p.ask(ctx, &direct)
	led.Inject = "" // the credential of another host
	if led.Verdict < Inspect {
		led.Reason = whereTo(r) + " leads to a host that this request may not reach by itself" // nor be told
	}
	return combine(d, led), looks || more
}

// ask puts a request to all layers.
func (p *Policy) ask(ctx context.Context, r *Request) (d Decision, looks bool) {
	d, looks = hear(ctx, r, p.evaluators)
	d, more := p.hearBelow(ctx, r, d)
	narrower, most := hear(ctx, r, p.narrowing) // last: a question about what nobody opens is none
	return combine(d, narrower), looks || more || most
}

// LearnRule is the rule of what passed only because of [Environment.Learn].
const LearnRule = "learn"

func (p *Policy) byDefault(r *Request) Decision {
	if p.fallback == Allow {
		return Decision{Verdict: Allow, Rule: "default", Layer: User, Reason: "the default is allow", ECH: p.ech, Upgrade: true}
	}
	if p.learning {
		return Decision{Verdict: Allow, Rule: LearnRule, Layer: User, Reason: "no rule speaks of " + whereTo(r) + ", which is let pass to be learned", ECH: p.ech, Upgrade: true}
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

// combine returns the stricter of two opinions; at the same verdict the
// first one's words stand, and an option holds only where both give it. What
// an Abstain still needs to see is kept: the request may yet be refused. Of two
// credentials that of the stricter goes with the request, else that of the first.
// Of two budgets the smaller counts, a mark that one of them asks for stands, and what was
// approved for either.
func combine(a, b Decision) Decision {
	if a.Verdict == Abstain || b.Verdict < a.Verdict {
		a, b = b, a
	}
	if b.Verdict != Abstain {
		a.AnyProtocol = a.AnyProtocol && b.AnyProtocol
		a.ECH = a.ECH && b.ECH
		a.Upgrade = a.Upgrade && b.Upgrade
	}
	if a.Inject == "" && a.Verdict != Deny {
		a.Inject = b.Inject
	}
	a.Spend(b.MaxBytesUp, b.BudgetRule, b.BudgetLayer)
	a.Log = a.Log || b.Log
	a.Question = bothQuestions(a.Question, b.Question)
	a.Needs |= b.Needs
	if a.AllowedIf == nil && a.Verdict > Ask {
		a.AllowedIf = b.AllowedIf
	}
	return a
}

// bothQuestions joins the ids of questions, each once.
func bothQuestions(a, b string) string {
	switch {
	case a == "" || a == b:
		return b
	case b == "":
		return a
	}
	all := append(strings.Fields(a), strings.Fields(b)...)
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}
