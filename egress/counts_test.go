package egress

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record/count"
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

// TestARequestIsCountedOnce asks for names, connects to some, and compares figures and a tally after a minute.
func TestARequestIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, policy.New(opinion(func(r *policy.Request) policy.Decision {
			if r.Destination.Host == "evil.test" || r.Destination.Host == "asked.test" {
				return deny(r)
			}
			return allow(r)
		})))
		var tally Tally
		w.config.Tally = &tally
		for _, host := range []string{"good.test", "idle.test"} {
			w.zone.addrs[host] = []netip.Addr{netip.MustParseAddr("93.184.216.34")}
		}
		for range 3 {
			for _, host := range []string{"evil.test", "good.test", "asked.test", "idle.test"} {
				for _, kind := range []string{"A", "AAAA"} {
					_, _ = w.Resolve(t.Context(), peer, questionOf(host, kind))
				}
			}
			if f, err := w.Open(t.Context(), peer, ask(t, "good.test:443")); err == nil {
				f.Close(End{Outcome: "closed"})
			}
			_, _ = w.Open(t.Context(), peer, ask(t, "evil.test:443"))
		}
		figures := func() map[DecisionFigure]bool {
			all := map[DecisionFigure]bool{}
			for _, d := range w.Records.Figures().Requests {
				all[d] = true
			}
			return all
		}
		ended := []DecisionFigure{{"connect", "allow", "", 3}, {"connect", "deny", string(policy.RuleDeny), 3}}
		named := []DecisionFigure{{"dns", "allow", "", 3}, {"dns", "deny", string(policy.RuleDeny), 3}}
		now := figures()
		time.Sleep(count.Follows + time.Second)
		later := figures()
		for _, d := range ended {
			if !now[d] || !later[d] {
				t.Errorf("%+v is not in %v and %v", d, now, later)
			}
		}
		for _, d := range named {
			if now[d] || !later[d] {
				t.Errorf("%+v is in %v, or not in %v", d, now, later)
			}
		}
		if c := tally.Counts(); c.Requests != 3 || c.Names != 3 || len(c.Denied) != 2 || c.Denied[0].Times != 3 || c.Denied[1].Times != 3 {
			t.Errorf("the tally has %+v", c)
		}
	})
}
