package egress

import (
	"context"
	"errors"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A SearchResolver is a Resolver that knows domains in which names without a dot are looked up.
type SearchResolver interface {
	Search() []string
}

// complete returns the name that a question for a name without a dot means: the first one in the domains of the search list
// that the policy lets be asked for, and that exists. If there is none, complete returns the name itself. If the policy denies the
// name too, complete returns the first one, so that the denial names it. Each lookup is recorded ([Gate.Resolve]).
func (n *Names) complete(ctx context.Context, peer sandbox.Peer, q policy.DNSQuery) string {
	resolver, ok := n.gate.config.Resolver.(SearchResolver)
	if !ok || strings.Contains(q.Name, ".") || isLocal(n.gate.config.Resolver, q.Name) {
		return q.Name
	}
	asked := func(name string) policy.DNSQuery { return policy.DNSQuery{Name: name, Type: q.Type} }
	allows := func(name string) bool {
		about := asked(name)
		return n.gate.Outlook.Allows(ctx, peer, policy.Request{Via: policy.ViaDNS, Destination: policy.Destination{Host: name}, DNS: &about})
	}
	first := ""
	for _, domain := range resolver.Search() {
		whole, err := policy.ParseName(q.Name + "." + domain)
		if err != nil {
			continue
		}
		if first == "" {
			first = whole
		}
		if allows(whole) && n.exists(ctx, peer, asked(whole)) {
			return whole
		}
	}
	if first != "" && !allows(q.Name) {
		return first
	}
	return q.Name
}

// exists reports whether a name has addresses, also ones that the policy denies.
func (n *Names) exists(ctx context.Context, peer sandbox.Peer, q policy.DNSQuery) bool {
	_, err := n.gate.Resolve(ctx, peer, q)
	refusal, ok := errors.AsType[*Refusal](err)
	return err == nil || ok && refusal.Decision.Class == policy.AddressDenied
}
