package run

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// passing are the recorded first flights that name allowed.test and nothing else.
var passing = []string{"base-allowed.bin", "early-data.bin", "pad-pq.bin", "sni-upper.bin"}

// TestRunHellos sends every recorded first flight to an address, as a program does
// that has resolved for itself. Those that name an allowed host go to that host,
// not to the address; of the others no byte goes anywhere.
func TestRunHellos(t *testing.T) {
	d := world.NewDaemon(t, "version: 1\nallow: [allowed.test]\n")
	folder := world.Source("testdata", "clienthello")
	wire, err := d.World.Wire.Mark()
	if err != nil {
		t.Fatal(err)
	}
	mark := d.World.Sink.Mark()
	runAs(t, d, "user", `for f in `+folder+`/*.bin; do timeout 5 socat -t1 - TCP:151.101.1.69:443 <$f >/dev/null 2>&1 & done; wait`)
	names := map[string]string{} // by content: some first flights differ in how they are sent alone
	for _, path := range passing {
		text, err := os.ReadFile(filepath.Join(folder, path))
		if err != nil {
			t.Fatal(err)
		}
		names[string(text)] = path
	}
	var passed []string
	ok := world.Eventually(5*time.Second, func() bool {
		passed = nil
		for _, a := range d.World.Sink.Since(mark) {
			text, _ := a.Received()
			if to := a.To.Addr().String(); to != world.AllowedIPv4 && to != world.AllowedIPv6 {
				t.Fatalf("%v got %q", a.To, text)
			}
			if len(text) > 0 { // a host that was named before the hello was refused is connected to, and told nothing
				passed = append(passed, names[string(text)])
			}
		}
		slices.Sort(passed)
		return slices.Equal(passed, passing)
	})
	if !ok {
		t.Errorf("%q passed, want %q", passed, passing)
	}
	packets, err := d.World.Wire.Since(wire)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		if to := p.To.Addr().String(); to != world.AllowedIPv4 && to != world.AllowedIPv6 && p.To.String() != world.Resolver {
			t.Errorf("sent %v", p)
		}
	}
}
