package peers

import (
	"fmt"
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
	var allowed, denied []string
	for _, names := range []struct {
		camel, snake string
		into         any
	}{
		{"allowInternetAccess", "allow_internet_access", &r.open},
		{"allowOut", "allow_out", &allowed},
		{"denyOut", "deny_out", &denied},
	} {
		if top[names.camel] != nil && top[names.snake] != nil {
			return fmt.Errorf("%s and %s are the same setting", names.camel, names.snake)
		}
		if err := top.takeAll(map[string]any{names.camel: names.into, names.snake: names.into}); err != nil {
			return err
		}
	}
	if _, err := top.only(""); err != nil {
		return err
	}
	for _, text := range allowed {
		if err := r.allowE2B(text); err != nil {
			return err
		}
	}
	for _, text := range denied {
		p, ok := ipv4Of(text)
		if !ok {
			return fmt.Errorf("denyOut: %q is no address", text)
		}
		if p.Bits() == 0 {
			r.open = false
		}
		r.deny(text, just(within(p)), clause{})
	}
	return nil
}

// allowE2B adds an entry of allowOut: a name at the ports of the web, or an address at all.
func (r *reading) allowE2B(text string) error {
	if p, ok := ipv4Of(text); ok {
		r.allow(text, just(within(p)), clause{})
		return nil
	}
	if strings.ContainsAny(text, ":/") {
		return fmt.Errorf("allowOut: %q is neither a name nor an address", text)
	}
	s, err := namesOr(text, anyDepth)
	if err != nil {
		return fmt.Errorf("allowOut: %w", err)
	}
	r.allow(text, s, clause{ports: webPorts})
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
