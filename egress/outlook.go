package egress

import (
	"context"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// An Outlook says what the policy in force would decide, for a way in that can go about a request in two ways. It permits
// nothing, resolves nothing and records nothing. It is safe for concurrent use.
type Outlook struct{ gate *Gate }

// Allows reports whether the policy would let r be, as far as r is known.
func (o *Outlook) Allows(ctx context.Context, peer sandbox.Peer, r policy.Request) bool {
	refusal, err := o.decide(ctx, peer, r)
	return err == nil && refusal == nil
}

// Mentions reports whether some part of the policy is about r: it lets r be, asks about it, or refuses it for another
// reason than that no rule mentions it. A peer of no sandbox is refused whatever r is, so Mentions reports true.
func (o *Outlook) Mentions(ctx context.Context, peer sandbox.Peer, r policy.Request) bool {
	refusal, err := o.decide(ctx, peer, r)
	return err != nil || mentions(refusal)
}

// AwaitsName reports whether the host that a client claims decides where it goes, and not the address that it asks for: no
// part of the policy is about that address, and some name could pass at its port.
func (o *Outlook) AwaitsName(ctx context.Context, peer sandbox.Peer, r policy.Request) bool {
	return r.Destination.Addr.IsValid() && o.gate.policy.Load().MayName(r.Destination.Port) && !o.Mentions(ctx, peer, r)
}

func mentions(refusal *Refusal) bool {
	return refusal == nil || refusal.Decision.Class != policy.DefaultDeny
}

// decide returns the refusal of r, or nil. The error says that peer is of no sandbox.
func (o *Outlook) decide(ctx context.Context, peer sandbox.Peer, r policy.Request) (*Refusal, error) {
	who, err := o.gate.accounts.identify(peer)
	if err != nil {
		return nil, err
	}
	f := o.gate.newFlow(peer, r)
	f.request.Sandbox = who
	return f.decide(ctx, f.request), nil
}
