package egress

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"
)

// A slowZone takes its time for each name.
type slowZone struct{ *zone }

func (z slowZone) Lookup(ctx context.Context, name string) ([]netip.Addr, []string, error) {
	time.Sleep(300 * time.Millisecond)
	return z.zone.Lookup(ctx, name)
}

// TestADecisionIsTimedByItself decides about a name and its address, with a policy that takes 7 ms each time and a name
// server that takes longer.
func TestADecisionIsTimedByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
			time.Sleep(7 * time.Millisecond)
			return allow(r)
		})))
		w.zone.addrs["slow.test"] = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
		w.config.Resolver = slowZone{w.zone}
		f, err := w.Open(t.Context(), peer, ask(t, "slow.test:443"))
		if err != nil {
			t.Fatal(err)
		}
		f.Close(End{})
		h := w.Records.Figures().Decided
		if h.Count != 2 || h.Sum != 14*time.Millisecond || h.Within(0.99) != 10*time.Millisecond {
			t.Errorf("%d decisions in %v, 99 %% within %v; want 2 in 14ms, within 10ms", h.Count, h.Sum, h.Within(0.99))
		}
	})
}
