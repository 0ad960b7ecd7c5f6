package dns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestHostsFiles(t *testing.T) {
	const text = "127.0.0.1\tlocalhost\n# 9.9.9.9 comment.test\n\n93.184.216.35 A.ok.test. a # and why\n2606:4700::1 a.ok.test\n::ffff:1.2.3.4 mapped.test\nfe80::1%lo zone.test\nnot-an-address x.test\n1.2.3.4\n"
	got := HostAddrs(ReadHosts(strings.NewReader(text)))
	for name, want := range map[string][]netip.Addr{
		"localhost":    {netip.MustParseAddr("127.0.0.1")},
		"a.ok.test":    {netip.MustParseAddr("93.184.216.35"), netip.MustParseAddr("2606:4700::1")},
		"a":            {netip.MustParseAddr("93.184.216.35")},
		"mapped.test":  {netip.MustParseAddr("1.2.3.4")},
		"comment.test": nil, "zone.test": nil, "x.test": nil, "and": nil, "A.ok.test.": nil,
	} {
		if !slices.Equal(got[name], want) {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
}
