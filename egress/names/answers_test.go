package names

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

func TestAnAddressStandsForItsOnlyName(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	type answer struct {
		name  string
		until int
	}
	for _, row := range []struct {
		says  string
		given []answer
		now   int
		wants string
	}{
		{"no answer", nil, 0, ""},
		{"one name", []answer{{"a", 10}}, 9, "a"},
		{"one name, too late", []answer{{"a", 10}}, 10, ""},
		{"one name, answered again", []answer{{"a", 10}, {"a", 20}}, 15, "a"},
		{"one name, answered again for shorter", []answer{{"a", 20}, {"a", 10}}, 15, "a"},
		{"two names", []answer{{"a", 10}, {"b", 20}}, 5, ""},
		{"two names, of which one has gone", []answer{{"a", 10}, {"b", 20}}, 15, "b"},
		{"two names, of which the later one has gone", []answer{{"a", 20}, {"b", 10}}, 15, "a"},
		{"three names, of which two are left", []answer{{"a", 30}, {"b", 10}, {"c", 20}}, 15, ""},
		{"three names, in another order", []answer{{"b", 10}, {"a", 30}, {"c", 20}}, 15, ""},
		{"three names, of which one is left", []answer{{"b", 10}, {"c", 20}, {"a", 30}}, 25, "a"},
	} {
		var a answers
		for _, one := range row.given {
			a.bind(addr, one.name, start, at(one.until))
		}
		if got := a.only(addr, at(row.now)); got != row.wants {
			t.Errorf("%s: %q, want %q", row.says, got, row.wants)
		}
	}
}

// TestAnswersAreBounded has a sandbox ask for more than is remembered. What is not
// remembered has no name, also where another name has the address.
func TestAnswersAreBounded(t *testing.T) {
	var a answers
	now := time.Unix(1000, 0)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range maxAddresses {
		a.bind(addr(i), fmt.Sprint("n", i), now, now.Add(time.Second))
	}
	a.bind(addr(maxAddresses), "late", now, now.Add(time.Hour))
	if len(a.byAddr) != maxAddresses || a.only(addr(maxAddresses), now) != "" || a.only(addr(7), now) != "n7" {
		t.Errorf("%d are remembered, the last one as %q", len(a.byAddr), a.only(addr(maxAddresses), now))
	}
	now = now.Add(2 * time.Second)
	a.bind(addr(maxAddresses), "late", now, now.Add(time.Hour))
	if len(a.byAddr) != 1 || a.only(addr(maxAddresses), now) != "late" {
		t.Errorf("%d are remembered after their time", len(a.byAddr))
	}
}

// TestSandboxesWithAnswersAreBounded has more sandboxes than there is space for.
func TestSandboxesWithAnswersAreBounded(t *testing.T) {
	var a Answers
	addr := netip.MustParseAddr("192.0.2.1")
	for n := range maxSandboxes + 1 {
		a.Bind(fmt.Sprint(n), "a.test", []netip.Addr{addr}, 0)
	}
	if a.Name("0", addr) != "a.test" || a.Name(fmt.Sprint(maxSandboxes), addr) != "" {
		t.Error("the first sandbox has no binding, or one too many has one")
	}
	a.Forget("0")
	if a.Name("0", addr) != "" {
		t.Error("a sandbox has a binding that was forgotten")
	}
}
