package policy

import (
	"net/netip"
	"testing"
)

// TestNothingOpensTheUpstreamProxy, by its name or an address, at its port alone.
func TestNothingOpensTheUpstreamProxy(t *testing.T) {
	var rules []Rule
	for _, text := range []string{"10.9.9.9:3128", "10.0.0.0/8:*"} {
		p, err := ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, Rule{ID: text, Pattern: p})
	}
	known := func() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort("10.9.9.9:3128")} }
	b := NewBaseline(BaselineOptions{
		Upstream: &Destination{Host: "proxy.test", Port: 3128}, UpstreamAt: known, Exceptions: rules, Unsafe: rules,
	})
	for _, row := range []struct {
		to     string
		addrs  []string
		alias  string
		closed bool
	}{
		{to: "proxy.test:3128", closed: true},
		{to: "proxy.test:443"},
		{to: "10.9.9.9:3128", closed: true},
		{to: "10.9.9.9:443"},
		{to: "10.9.9.8:3128"},
		{to: "other.test:3128", addrs: []string{"10.9.9.8", "10.9.9.9"}, closed: true},
		{to: "other.test:3128", addrs: []string{"10.9.9.8"}},
		{to: "other.test:3128", addrs: []string{"10.9.9.8"}, alias: "proxy.test", closed: true},
		{to: "[64:ff9b::a09:909]:3128", closed: true},
	} {
		dst, err := ParseDestination(row.to)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range row.addrs {
			dst.Addrs = append(dst.Addrs, netip.MustParseAddr(a))
		}
		if row.alias != "" {
			dst.Aliases = []string{row.alias}
		}
		d, err := b.Evaluate(t.Context(), &Request{Destination: dst})
		if err != nil || (d.Verdict == Deny) != row.closed || row.closed && d.Class != AddressDenied {
			t.Errorf("%s %v %s: %+v, %v", row.to, row.addrs, row.alias, d, err)
		}
	}
}
