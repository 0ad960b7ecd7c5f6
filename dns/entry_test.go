package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCacheIsBoundedInBytes has everybody who answers say as much as is kept of an answer,
// and then ask again.
func TestCacheIsBoundedInBytes(t *testing.T) {
	f := &Forwarder{}
	long := strings.Repeat("a.", 100)
	full := func(i int) (name string, e entry) {
		name = fmt.Sprintf("%s%d.test", long, i)
		for k := range 2 * maxChain {
			e.aliases = append(e.aliases, fmt.Sprintf("%d.%s", k, name))
		}
		e.addrs = slices.Repeat([]netip.Addr{netip.MustParseAddr("192.0.2.1")}, maxAddrs)
		e.expires = time.Now().Add(time.Hour)
		return name, e
	}
	check := func(when string, most int) {
		t.Helper()
		sum := 0
		for _, name := range f.cache.Keys() {
			e, _ := f.cache.Peek(name)
			sum += len(name) + len(strings.Join(e.aliases, "")) + 24*len(e.addrs)
		}
		if f.kept < sum || f.kept > most {
			t.Errorf("%s: %d names of %d bytes count as %d, and %d is the most", when, f.cache.Len(), sum, f.kept, most)
		}
	}
	const rounds = 4000
	for i := range rounds {
		f.keep(full(i))
	}
	check("all at once", defaultMaxBytes)
	if n := f.cache.Len(); n < 1000 || n >= rounds {
		t.Errorf("%d names of %d are kept", n, rounds)
	}
	for range rounds {
		f.keep(full(rounds - 1))
	}
	check("one again and again", defaultMaxBytes)
	if _, _, ok := f.Cached(long + "3998.test"); !ok {
		t.Error("a name that is kept again takes the place of others")
	}
	f.cache, f.kept = nil, 0
	f.MaxEntries, f.MaxBytes = 3, 1<<20
	for i := range 10 {
		f.keep(full(i))
	}
	_, one := full(0)
	check("few", 4*one.takes(long+"0.test"))
	f.MaxBytes = one.takes(long+"0.test") - 1
	f.keep(full(0))
	if f.cache.Len() != 0 || f.kept != 0 {
		t.Errorf("what is larger than the cache is kept: %d names, %d bytes", f.cache.Len(), f.kept)
	}
}
