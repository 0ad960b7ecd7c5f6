package egress

import (
	"context"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// Deny records that r is refused for a reason that the way in knows, whatever
// the policy says, and returns the refusal to render.
func (g *Gate) Deny(peer sandbox.Peer, r policy.Request, class policy.Class, why string) *Refusal {
	f := g.newFlow(peer, r)
	if who, err := g.config.Sandboxes.Identify(peer); err == nil {
		f.request.Sandbox = who
	}
	return f.refuse(policy.Decision{Class: class, Rule: "baseline", Layer: policy.Builtin, Reason: why})
}

// Foresees reports whether the policy in force would let r be, as far as r is
// known: for a way in that can go about it in two ways. It permits nothing,
// resolves nothing and records nothing.
func (g *Gate) Foresees(ctx context.Context, peer sandbox.Peer, r policy.Request) bool {
	allowed, _ := g.foresees(ctx, peer, r, false)
	return allowed
}

// ForeseesNow is Foresees for an event loop: it answers at once or reports wait.
func (g *Gate) ForeseesNow(peer sandbox.Peer, r policy.Request) (allowed, wait bool) {
	return g.foresees(context.Background(), peer, r, true)
}

func (g *Gate) foresees(ctx context.Context, peer sandbox.Peer, r policy.Request, now bool) (allowed, wait bool) {
	who, err := g.config.Sandboxes.Identify(peer)
	if err != nil {
		return false, false
	}
	f := g.newFlow(peer, r)
	f.request.Sandbox = who
	f.hurried = now
	refusal := f.decide(ctx, f.request)
	return refusal == nil, refusal == wouldWait
}
