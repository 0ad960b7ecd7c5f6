package file

import (
	"errors"
	"fmt"
	"net/netip"

	"go.yaml.in/yaml/v3"
)

// PlaceholderPrefixes are the prefixes of addresses that stand for names in sandboxes whose connections are captured. A prefix that
// is not given is egressd's own.
type PlaceholderPrefixes struct{ IPv4, IPv6 netip.Prefix }

func (r *reader) placeholders(p *PlaceholderPrefixes) func(*yaml.Node) {
	return r.section("placeholders", fields{
		"ipv4": parsed(r, "placeholders.ipv4", &p.IPv4, func(text string) (netip.Prefix, error) { return parsePlaceholders(text, true, 8, 22) }),
		"ipv6": parsed(r, "placeholders.ipv6", &p.IPv6, func(text string) (netip.Prefix, error) { return parsePlaceholders(text, false, 16, 112) }),
	})
}

// parsePlaceholders reads a prefix of one family that is between most and least bits long: at least 1024 addresses, of which
// 256 stand for no name.
func parsePlaceholders(text string, four bool, shortest, longest int) (netip.Prefix, error) {
	example := "28.255.0.0/16"
	if !four {
		example = "2d00:6567:7265:7373::/112"
	}
	p, err := netip.ParsePrefix(text)
	switch a := p.Addr(); {
	case err != nil || a.Is4() != four || p != p.Masked() || a.Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is not a prefix for this; write one such as %s", printable(text), example)
	case p.Bits() < shortest || p.Bits() > longest:
		return netip.Prefix{}, fmt.Errorf("%s has %d bits; write from %d to %d", p, p.Bits(), shortest, longest)
	case a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.IsLinkLocalUnicast():
		return netip.Prefix{}, errors.New(p.String() + " holds addresses that no program connects to by a route; write one such as " + example)
	}
	return p, nil
}
