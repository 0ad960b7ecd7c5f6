package egress

import (
	"context"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// Request opens a flow for one HTTP request inside the inspected tunnel f. The policy in force decides it for f's sandbox,
// destination and addresses, and the decision is recorded before Request returns. The error is always a
// [*Refusal].
//
// Cancelling ctx ends only the wait for a person's approval. Without a reader, a request is refused if a rule asks
// for more of it.
//
// The new flow is closed on its own, and cut on its own when a later policy
// refuses it. It outlives neither f's permission nor f's connection.
func (f *Flow) Request(ctx context.Context, h *policy.HTTPRequest, read RequestReader) (*Flow, error) {
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
	if refusal := inner.admitRequest(ctx, read); refusal != nil {
		f.gate.Approvals.FlowEnded(id)
		inner.account().refund(held)
		return nil, refusal
	}
	inner.Over(f)
	if refusal := inner.enlist(ctx); refusal != nil {
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

func (f *Flow) admitRequest(ctx context.Context, read RequestReader) *Refusal {
	calm := context.WithoutCancel(ctx)
	var late time.Time
	if refusal := f.decideOrAsk(ctx, f.request, &late); refusal != nil {
		return f.denied(calm)
	}
	if d := f.spent(); d != nil {
		return f.refuse(*d)
	}
	if refusal := f.readRequest(ctx, read, &late); refusal != nil {
		return f.denied(calm)
	}
	f.compare(calm, f.request)
	return f.recordDecision()
}
