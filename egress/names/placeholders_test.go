package names

import (
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
