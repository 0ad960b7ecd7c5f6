package peers

import (
	"net/netip"
	"strings"
)

// readE2B reads lists in which an allow wins. A denied address stays reachable by an allowed name there.
func readE2B(r *reading, text []byte) error {
	top, err := parseJSON(text)
	if err != nil {
		return err
	}
	r.open, r.apart = true, true
	var camel, snake, inCamel, inSnake e2bLists
	camelKeys := schema{"allowInternetAccess": into(&camel.open), "allowOut": into(&camel.allowed), "denyOut": into(&camel.denied)}
	snakeKeys := schema{"allow_internet_access": into(&snake.open), "allow_out": into(&snake.allowed), "deny_out": into(&snake.denied)}
	s := schema{"network": fields(joined(
		schema{"allowOut": into(&inCamel.allowed), "denyOut": into(&inCamel.denied), "allowInternetAccess": into(&inCamel.open)},
		schema{"allow_out": into(&inSnake.allowed), "deny_out": into(&inSnake.denied), "allow_internet_access": into(&inSnake.open)},
	).aside(e2bAside))}
	if err := r.take(top, joined(s, camelKeys, snakeKeys).aside(e2bAside)); err != nil {
		return err
	}
	var l e2bLists
	for _, other := range []e2bLists{camel, snake, inCamel, inSnake} {
		if l.allowed != nil && other.allowed != nil || l.denied != nil && other.denied != nil || l.open != nil && other.open != nil {
			return top.errorf("a setting stands there twice: as allowOut and allow_out, or at the top and in network")
		}
		if other.allowed != nil {
			l.allowed = other.allowed
		}
		if other.denied != nil {
			l.denied = other.denied
		}
		if other.open != nil {
			l.open, r.open = other.open, *other.open
		}
	}
	for _, w := range l.allowed {
		if err := r.allowE2B(w); err != nil {
			return err
		}
	}
	for _, w := range l.denied {
		p, ok := ipv4Of(w.text)
		if !ok {
			return w.at.errorf("denyOut: %q is no IPv4 address or prefix, and E2B denies nothing else", w.text)
		}
		if p.Bits() == 0 {
			r.open = false
		}
		r.deny(w.text, just(within(p)), clause{})
	}
	return nil
}

// e2bAside are settings of the network and of Sandbox.create that open no destination and close none (npm e2b 2.51.0).
const e2bAside = `rules egressProxy egress_proxy allowPublicTraffic allow_public_traffic maskRequestHost mask_request_host httpsPorts
	https_ports template templateID metadata envs envVars env_vars timeout timeoutMs secure mcp lifecycle autoPause auto_pause volumeMounts`

type e2bLists struct {
	open            *bool
	allowed, denied []word
}

// allowE2B adds an entry of allowOut: a name at the ports of the web, or an address at all.
func (r *reading) allowE2B(w word) error {
	if p, ok := ipv4Of(w.text); ok {
		r.allow(w.text, just(within(p)), clause{})
		return nil
	}
	if strings.ContainsAny(w.text, ":/") {
		return w.at.errorf("allowOut: %q is neither a name nor an IPv4 address", w.text)
	}
	s, err := namesOr(w.text, anyDepth)
	if err != nil {
		return w.at.errorf("allowOut: %w", err)
	}
	r.allow(w.text, s, clause{ports: webPorts})
	return nil
}

func ipv4Of(text string) (netip.Prefix, bool) {
	p, ok := prefixOf(text)
	return p, ok && p.Addr().Is4()
}

// namesOr reads "*" as every name and no address, which egressd cannot say.
func namesOr(text string, wild star) (scope, error) {
	if text == "*" {
		return scope{sets: []hostSet{everything}, part: "here * stands for addresses, too"}, nil
	}
	return scopeOf(text, wild)
}
