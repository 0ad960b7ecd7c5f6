package egress

import (
	"context"
	"net/netip"

	"github.com/egressd/egressd/egress/names"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// Names answers what sandboxes ask name servers, and keeps which names addresses stand for in each sandbox. It is safe
// for concurrent use.
//
// A name server of a sandbox whose connections are captured answers with placeholder addresses (Bind, OfPlaceholder). A
// forwarding name server asks by an [Inquiry], which binds the addresses of its answer ([Inquiry.Bind], OfAnswer).
type Names struct {
	gate         *Gate
	placeholders names.Placeholders
	answers      names.Answers
	async        AsyncResolver // the resolver, if it answers in time; nil otherwise
	rrs          RRResolver    // the resolver, if it is one; nil otherwise
	recorded     resolveQueue
}

// Bind decides whether peer may ask for the addresses of q's canonical name, records the decision, and binds
// placeholder addresses to the name. A denied name gets them, too: the reply to a connection there has the reason. A name
// without a dot stands for one in the resolver's search list, which Bind looks up; it resolves nothing else. The error is
// always a [*Refusal]: for other record types, unknown peers, a failed record, or if no address is free.
func (n *Names) Bind(ctx context.Context, peer sandbox.Peer, q policy.DNSQuery) (names.Placeholder, error) {
	g := n.gate
	r := policy.Request{Via: policy.ViaDNS, Destination: policy.Destination{Host: q.Name}, DNS: &q}
	f := g.newFlow(peer, r)
	who, err := g.accounts.identify(peer)
	switch {
	case err != nil:
		return names.Placeholder{}, f.refuse(unidentified(err))
	case g.shut.Load():
		return names.Placeholder{}, f.refuse(stopping)
	}
	f.request.Sandbox = who
	if q.Type != "A" && q.Type != "AAAA" {
		return names.Placeholder{}, f.refuse(typeDenied)
	}
	q.Name = n.complete(ctx, peer, q)
	f.request.Destination.Host = q.Name
	addrs, ok := n.placeholders.Bind(who.Name, q.Name, func() map[string]bool { return g.Flows.hostsOf(who.Name) })
	if !ok {
		return names.Placeholder{}, f.refuse(noneFree)
	}
	_ = f.decide(ctx, f.request) // a denied name gets addresses, too
	if refusal := f.recordDecision(); refusal != nil {
		return names.Placeholder{}, refusal
	}
	return addrs, nil
}

// OfPlaceholder returns the name that addr stands for in peer's sandbox. Other addresses mean themselves.
func (n *Names) OfPlaceholder(peer sandbox.Peer, addr netip.Addr) (name string, ok bool) {
	who, err := n.gate.accounts.identify(peer)
	if err != nil {
		return "", false
	}
	return n.placeholders.Name(who.Name, addr)
}

// OfAnswer returns the name that addr stands for by the recent answers to peer's sandbox, or "" if there are several.
// The sandbox probably means that name. It permits nothing: the name is decided and resolved like any other.
func (n *Names) OfAnswer(peer sandbox.Peer, addr netip.Addr) string {
	if !n.gate.config.BindAnswers {
		return ""
	}
	who, err := n.gate.accounts.identify(peer)
	if err != nil {
		return ""
	}
	return n.answers.Name(who.Name, addr)
}

// Forget drops the placeholders of a sandbox that has gone.
func (n *Names) Forget(sandbox string) { n.placeholders.Forget(sandbox) }

// Holder returns whom quotas count a peer's questions with.
func (n *Names) Holder(peer sandbox.Peer) sandbox.Holder {
	return n.gate.config.Sandboxes.Holder(&peer)
}

var (
	typeDenied = policy.Decision{Class: policy.DNSTypeDenied, Rule: "dns", Layer: policy.Builtin, Reason: "only addresses may be asked for, and the types in upstream.dns_types"}
	noneFree   = policy.Decision{Class: policy.DNSBudget, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has asked for too many names in too short a time"}

	tooOften      = policy.Decision{Class: policy.DNSBudget, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox asks for names too often (limits.dns_queries_per_second)"}
	tellsTooMuch  = policy.Decision{Class: policy.DNSBudget, Rule: "limits", Layer: policy.Builtin, Reason: "so many, so long or so random names below one domain could carry data (limits.dns_name_bytes)"}
	tooManyAtOnce = policy.Decision{Class: policy.DNSBudget, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox waits for too many names at a time"}
)
