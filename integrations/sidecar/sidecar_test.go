package sidecar

import (
	"net/netip"
	"testing"
)

func TestSubnets(t *testing.T) {
	for _, row := range []struct {
		pool  string
		count int
		fails bool
	}{{"10.140.16.0/20", 64, false}, {"10.140.16.0/20", 65, true}, {"192.168.4.0/24", 4, false}, {"10.0.0.0/27", 1, true}, {"8.8.0.0/16", 1, true}, {"10.140.17.0/20", 1, true}, {"fd00::/20", 1, true}} {
		all, err := Subnets(netip.MustParsePrefix(row.pool), row.count)
		if (err != nil) != row.fails {
			t.Errorf("%s for %d: %v", row.pool, row.count, err)
		}
		for i, one := range all {
			h := SandboxNetwork{Subnet: one}
			if !netip.MustParsePrefix(row.pool).Contains(one.Addr()) || one != one.Masked() || !one.Contains(h.Self()) || h.Free().Contains(h.Self()) || !one.Overlaps(h.Free()) || h.Free() != h.Free().Masked() || i > 0 && one.Overlaps(all[i-1]) {
				t.Errorf("%s, number %d is %s, with %s and %s", row.pool, i, one, h.Self(), h.Free())
			}
		}
	}
	pools := Pools("app")
	seen := map[netip.Prefix]bool{}
	for _, p := range pools {
		seen[p] = true
		if _, err := Subnets(p, 64); err != nil || !netip.MustParsePrefix("10.128.0.0/10").Overlaps(p) {
			t.Fatalf("%s: %v", p, err)
		}
	}
	if len(seen) != 1024 || pools[0] == Pools("other")[0] {
		t.Errorf("%d pools, and the first is %s", len(seen), pools[0])
	}
}
