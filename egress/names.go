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
// forwarding name server calls [Gate.Resolve], which binds the addresses of its answer (OfAnswer).
type Names struct {
	gate         *Gate
	placeholders names.Placeholders
	answers      names.Answers
	rrs          RRResolver // the resolver, if it is one; nil otherwise
}

// Bind decides whether peer may ask for the addresses of q's canonical name, records the decision, and binds
// placeholder addresses to the name. A denied name gets them, too: the reply to a connection there has the reason. A name
// without a dot stands for one in the resolver's search list, which Bind looks up; it resolves nothing else. The error is
// always a [*Refusal]: for other record types, unknown peers, too many questions, a failed record, or if no address is free.
func (n *Names) Bind(ctx context.Context, peer sandbox.Peer, q policy.DNSQuery) (names.Placeholder, error) {
	f, refusal := n.gate.question(peer, q)
	if refusal != nil {
		return names.Placeholder{}, refusal
	}
	if !f.asksForAddresses() {
		return names.Placeholder{}, f.refuse(typeDenied)
	}
	who, name := f.request.Sandbox.Name, n.complete(ctx, peer, q)
	f.request.Destination.Host, f.request.DNS.Name = name, name
	addrs, ok := n.placeholders.Bind(who, name, func() map[string]bool { return n.gate.Flows.hostsOf(who) })
	if !ok {
		return names.Placeholder{}, f.refuse(noneFree)
	}
	if name == policy.InquiryHost && n.gate.Inquiries.On() {
		f.decideSame() // the connection is answered here
	} else {
		_ = f.decide(ctx, f.request) // a denied name gets addresses, too
	}
	if refusal := f.recordDecision(); refusal != nil {
		return names.Placeholder{}, refusal
	}
	return addrs, nil
}

// Local records that q is answered without asking anyone, since its answer is the same everywhere. The error is a [*Refusal].
func (n *Names) Local(peer sandbox.Peer, q policy.DNSQuery) error {
	f, refusal := n.gate.question(peer, q)
	if refusal != nil {
		return refusal
	}
	f.decideSame()
	return errorOf(f.recordDecision())
}

func (f *Flow) decideSame() {
	f.policy = f.gate.policy.Load()
	f.decision = &policy.Decision{Verdict: policy.Allow, Rule: "dns", Layer: policy.Builtin, Reason: "the answer is the same everywhere, and nobody is asked for it", Policy: f.policy.Digest()}
}

// Refuse records that a message or connection to a name server was refused before it could be put to the policy, and
// returns the refusal to render. raw is what was sent: its first 256 bytes are recorded.
func (n *Names) Refuse(peer sandbox.Peer, raw []byte, class policy.Class, why string) *Refusal {
	f, refusal := n.gate.question(peer, policy.DNSQuery{})
	if refusal != nil {
		return refusal
	}
	return f.refuseMessage(policy.Decision{Class: class, Rule: "parser", Layer: policy.Builtin, Reason: why}, recordOf{raw: raw})
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
