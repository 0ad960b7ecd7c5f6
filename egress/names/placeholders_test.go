package names

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnAddressIsNotBoundAgainTooSoon fills a small range.
func TestAnAddressIsNotBoundAgainTooSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bindings
		busy := map[string]bool{}
		now := time.Now()
		bind := func(name string) (uint32, bool) {
			return b.bind(name, 3, now, func() map[string]bool { return busy })
		}
		for i, name := range []string{"a", "b", "c"} {
			if got, ok := bind(name); !ok || got != uint32(i) {
				t.Fatalf("%s has %d, %v", name, got, ok)
			}
		}
		if _, ok := bind("d"); ok {
			t.Error("an address was bound again that may be in use")
		}
		now = now.Add(bindingLife)
		busy["a"] = true
		if got, ok := bind("d"); !ok || got != 1 {
			t.Errorf("d has %d, %v; want that of b: a is busy", got, ok)
		}
		is := func(index uint32, want string) bool {
			name, ok := b.name(index, now)
			return name == want && ok == (want != "")
		}
		if !is(1, "d") || !is(0, "a") || !is(7, "") {
			t.Error("the names are not as they were bound")
		}
		if _, ok := bind("e"); !ok { // c
			t.Error("the oldest that is free was not bound again")
		}
		if _, ok := bind("f"); ok {
			t.Error("an address was bound again that was used a moment ago")
		}
	})
}

// TestAnAddressMeansWhatItMeantFirst connects to addresses before names are asked for, and after.
func TestAnAddressMeansWhatItMeantFirst(t *testing.T) {
	p := Placeholders{Range: Range{IPv4: netip.MustParsePrefix("28.255.0.0/22"), IPv6: netip.MustParsePrefix("2d00::/112")}}
	bind := func(sandbox, name string) netip.Addr {
		t.Helper()
		a, ok := p.Bind(sandbox, name, func() map[string]bool { return nil })
		if !ok {
			t.Fatalf("%s has no address", name)
		}
		return a.IPv4
	}
	first := netip.MustParseAddr("28.255.1.0")
	if name, ok := p.Name("a", first); ok {
		t.Fatalf("%v stands for %q", first, name)
	}
	if one := bind("a", "one"); one == first {
		t.Error("an address that meant itself was given to the first name")
	}
	if one := bind("b", "one"); one != first {
		t.Errorf("in another sandbox the first name has %v", one)
	}
	next := bind("a", "two").Next()
	p.Name("a", next)
	if three := bind("a", "three"); three == next {
		t.Error("an address that meant itself was given to a later name")
	}
	if name, _ := p.Name("b", first); name != "one" {
		t.Errorf("%v stands for %q", first, name)
	}
}
