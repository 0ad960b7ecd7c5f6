package egress

import (
	"context"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// Inspected reports whether the policy lets the flow's tunnel be only if every
// request in it is decided: its TLS has to end in egressd. The answer counts
// once Narrow has put the ClientHello to the policy, and does not change after that.
func (f *Flow) Inspected() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tunnel != undecidedContents {
		return f.tunnel == inspected
	}
	return f.decision.Verdict == policy.Inspect
}

// Request opens a flow for one HTTP request inside the inspected tunnel f. The policy in force decides it for f's sandbox,
// destination and addresses, and the decision is recorded before Request returns. The error is always a
// [*Refusal].
//
// Cancelling ctx ends only the wait for a person's approval.
//
// The new flow is closed on its own, and cut on its own when a later policy
// refuses it. It outlives neither f's permission nor f's connection.
func (f *Flow) Request(ctx context.Context, h *policy.HTTPRequest) (*Flow, error) {
	inner, refusal := f.inner(ctx, h)
	if refusal != nil {
		return nil, refusal
	}
	held, ok := inner.charge()
	if !ok {
		return nil, inner.refuse(tooManyFlows)
	}
	id := inner.id
	f.gate.Approvals.Inherit(f.id, id)
	if refusal := inner.admitRequest(ctx); refusal != nil {
		f.gate.Approvals.FlowEnded(id)
		inner.account().refund(held)
		return nil, refusal
	}
	inner.Over(f)
	if refusal := inner.found(ctx); refusal != nil {
		return nil, refusal
	}
	return inner, nil
}

// inner makes the flow of a request inside f, which has to be still allowed.
func (f *Flow) inner(ctx context.Context, h *policy.HTTPRequest) (*Flow, *Refusal) {
	refusal := f.current(context.WithoutCancel(ctx))
	f.mu.Lock()
	defer f.mu.Unlock()
	r := *f.request
	r.HTTP, r.Protocol, r.Usage = h, policy.ProtocolHTTP, nil
	inner := f.gate.newFlow(sandbox.Peer{Addr: f.src.addrPort()}, r)
	if refusal != nil {
		return nil, inner.refuse(refusal.Decision)
	}
	return inner, nil
}

// Over sets the address of f's close record to the address that tunnel dialled last. f was opened inside tunnel. Call Over
// again if tunnel has dialled a new connection for the request.
func (f *Flow) Over(tunnel *Flow) {
	tunnel.mu.Lock()
	dialled := tunnel.dialled
	tunnel.mu.Unlock()
	f.mu.Lock()
	f.dialled = dialled
	f.mu.Unlock()
}

func (f *Flow) admitRequest(ctx context.Context) *Refusal {
	calm := context.WithoutCancel(ctx)
	a := asking{Flow: f}
	if refusal := a.decideOrAsk(ctx, f.request); refusal != nil {
		return f.denied(calm, refusal)
	}
	f.compare(calm, f.request)
	return f.recordDecision()
}

// Credential names the rule whose credential is to be added to the flow's
// request, and the digest of the policy that says so. rule is empty where none
// is.
func (f *Flow) Credential() (rule, digest string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decision.Inject, f.decision.Policy
}

// tooLateToLook refuses a tunnel whose bytes passed unread so far, by a policy
// that has come to depend on what is in them.
func tooLateToLook(d policy.Decision) policy.Decision {
	return policy.Decision{
		Class: policy.RuleDeny, Rule: d.Rule, Layer: d.Layer, Policy: d.Policy,
		Reason: "the policy now looks at the requests of this destination, and the tunnel was opened before; connect again",
	}
}
