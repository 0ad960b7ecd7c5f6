package egress

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/egressd/egressd/policy"
)

func budgetFor(t testing.TB, up int64, per time.Duration, hosts ...string) SpanBudget {
	t.Helper()
	b := SpanBudget{Name: "budgets[0]", Up: up, Per: per}
	for _, host := range hosts {
		p, err := policy.ParsePattern(host)
		if err != nil {
			t.Fatal(err)
		}
		b.Hosts = append(b.Hosts, p)
	}
	return b
}

func to(t testing.TB, text string) *policy.Destination {
	t.Helper()
	d, err := policy.ParseDestination(text)
	if err != nil {
		t.Fatal(err)
	}
	return &d
}

func TestBudgetsAreForTheirHosts(t *testing.T) {
	b := budgetFor(t, 1, time.Hour, "a.test", "*.b.test:8443", "192.0.2.0/24")
	for text, holds := range map[string]bool{
		"a.test:443": true, "a.test:22": true, "x.a.test:443": false, "x.b.test:8443": true, "x.b.test:443": false, "b.test:8443": false, "192.0.2.7:9": true, "192.0.3.7:9": false,
	} {
		if got := b.holds(to(t, text)); got != holds {
			t.Errorf("%s: %t", text, got)
		}
	}
}

func TestWhatChangesABudget(t *testing.T) {
	var s SpanBudgets
	now, dst := time.Now(), to(t, "a.test:443")
	take := func(who string, n int64) bool { return s.take(who, dst, n, now) == nil }
	s.Set([]SpanBudget{budgetFor(t, 100, time.Hour, "a.test")})
	if !take("one", 60) || take("one", 41) || !take("one", 40) || take("one", 1) || !take("other", 100) {
		t.Error("the budget of each is another than 100")
	}
	s.Set([]SpanBudget{budgetFor(t, 150, time.Hour, "a.test")}) // more of the same
	if !take("one", 50) || take("one", 1) {
		t.Error("what was counted is forgotten")
	}
	s.Set([]SpanBudget{budgetFor(t, 150, time.Hour, "a.test"), budgetFor(t, 10, time.Minute, "*")})
	if take("other", 11) || !take("other", 10) || take("other", 1) {
		t.Error("two budgets are not both held")
	}
	now = now.Add(2 * time.Minute)
	if !take("other", 10) {
		t.Error("a minute does not end")
	}
	s.Set(nil)
	if !take("one", 1<<40) {
		t.Error("a budget that is gone refuses")
	}
}

// TestNoSpanHasMoreThanItsBudget takes bytes at random times, and adds up each span of them by hand.
func TestNoSpanHasMoreThanItsBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const up = 1000
		per := time.Duration(rapid.IntRange(1, 100).Draw(t, "minutes")) * time.Minute
		var s SpanBudgets
		s.Set([]SpanBudget{{Hosts: []policy.Pattern{mustPattern("a.test")}, Up: up, Per: per}})
		type sent struct {
			at time.Time
			n  int64
		}
		var all []sent
		now, dst := time.Unix(1_800_000_000, 0), policy.Destination{Host: "a.test", Port: 443}
		refused := 0
		for range rapid.IntRange(1, 60).Draw(t, "times") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(per)/4).Draw(t, "later")))
			n := rapid.Int64Range(1, 400).Draw(t, "bytes")
			if s.take("x", &dst, n, now) == nil {
				all = append(all, sent{now, n})
			} else {
				refused++
			}
		}
		for i := range all {
			var sum int64
			for j := i; j >= 0; j-- {
				if all[i].at.Sub(all[j].at) < per {
					sum += all[j].n
				}
			}
			if sum > up {
				t.Fatalf("%d bytes within %s", sum, per)
			}
		}
		if refused > 0 && len(all) == 0 {
			t.Fatal("everything is refused")
		}
	})
}

func mustPattern(text string) policy.Pattern {
	p, err := policy.ParsePattern(text)
	if err != nil {
		panic(err)
	}
	return p
}
