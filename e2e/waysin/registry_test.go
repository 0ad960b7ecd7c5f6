package waysin

import (
	"encoding/csv"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// TestSpecialPurposeRegistries asks, where everything is allowed, for the
// first and the last address of every block of both IANA registries that is
// not globally reachable.
func TestSpecialPurposeRegistries(t *testing.T) {
	world.Covers(t, "IP-32")
	d := world.Start(t, world.PolicyText(t, "P-any"))
	v := &world.Vector{ID: "IP-32", Says: "a block that is not globally reachable", Policy: "P-any", Ways: []string{world.WayConnect, world.WaySOCKSIP},
		Expect: world.Expectation{Deny: []policy.Class{policy.AddressDenied}}}
	asked := 0
	for _, file := range []string{"ipv4-special-registry.csv", "ipv6-special-registry.csv"} {
		blocked, reachable := readRegistry(t, world.Source("policy", "iana", file))
		for _, prefix := range blocked {
			for _, addr := range []netip.Addr{prefix.Addr(), lastOf(prefix)} {
				if !within(reachable, addr) {
					asked++
					to := net.JoinHostPort(addr.String(), "80")
					for _, way := range v.Ways {
						d.Try(t, v, way, to)
					}
				}
			}
		}
	}
	if asked < 60 {
		t.Errorf("only %d addresses were found in the registries", asked)
	}
	for _, p := range d.Log.Flawed() {
		t.Error(p)
	}
}

// readRegistry returns the blocks that the registry says are not globally
// reachable, and those that it says are.
func readRegistry(t *testing.T, path string) (blocked, reachable []netip.Prefix) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const block, globally = 0, 8
	footnote := regexp.MustCompile(` *\[\d+\]`)
	for _, row := range rows[1:] {
		for _, text := range strings.Split(footnote.ReplaceAllString(row[block], ""), ",") {
			prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
			if err != nil {
				t.Fatal(err)
			}
			switch footnote.ReplaceAllString(row[globally], "") {
			case "False":
				blocked = append(blocked, prefix)
			case "True":
				reachable = append(reachable, prefix)
			}
		}
	}
	return blocked, reachable
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

func within(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
