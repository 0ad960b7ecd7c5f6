package policy

import (
	"context"
	"strings"
	"testing"
)

func TestTheSmallestBudgetHolds(t *testing.T) {
	opinions := func(budgets ...int64) (all []Evaluator) {
		for i, n := range budgets {
			d := Decision{Verdict: Allow, Rule: "r"}
			d.Spend(n, strings.Repeat("b", i+1), Organisation)
			all = append(all, fixed{decision: d})
		}
		return all
	}
	for _, row := range []struct {
		budgets []int64
		most    int64
		rule    string
	}{
		{[]int64{0, 0}, 0, ""},
		{[]int64{0, 5}, 5, "bb"},
		{[]int64{5, 0}, 5, "b"},
		{[]int64{5, 3, 4}, 3, "bb"},
	} {
		d := New(opinions(row.budgets...)...).Decide(context.Background(), &Request{Destination: Destination{Host: "a.test", Port: 22}})
		if d.MaxBytesUp != row.most || d.BudgetRule != row.rule {
			t.Errorf("%v: %d of rule %q", row.budgets, d.MaxBytesUp, d.BudgetRule)
		}
	}
}

func TestABodyThatIsAnnouncedTooLargeIsDenied(t *testing.T) {
	for _, verdict := range []Verdict{Allow, Ask} {
		d := Decision{Verdict: verdict, Rule: "r", Log: true}
		d.Spend(10, "small", Organisation)
		p := New(fixed{decision: d})
		for size, denied := range map[int64]bool{-1: false, 0: false, 10: false, 11: true, 1 << 62: true} {
			got := p.Decide(context.Background(), &Request{
				Via: ViaHTTP, Destination: Destination{Host: "a.test", Port: 80}, Protocol: ProtocolHTTP, HTTP: &HTTPRequest{Method: "PUT", Path: "/", BodySize: size},
			})
			if (got.Class == ByteBudget) != denied {
				t.Errorf("%v with %d bytes: %+v", verdict, size, got)
			}
			if denied && (got.Verdict != Deny || got.Rule != "small" || got.Layer != Organisation || !got.Log || got.Policy == "" ||
				got.Reason != "rule small lets at most 10 bytes of it go up" || got.AllowedIf[0] != "its body has at most 10 bytes") {
				t.Errorf("%+v", got)
			}
		}
	}
}

// counting says whether it looks at usage.
type counting struct {
	fixed
	reads bool
}

func (c counting) ReadsUsage() bool { return c.reads }

func TestAPolicyReadsUsageWhereOneOfItsEvaluatorsDoes(t *testing.T) {
	var none *Policy
	if none.ReadsUsage() || New().ReadsUsage() || New(fixed{}, counting{}).ReadsUsage() {
		t.Error("nobody reads usage")
	}
	reads := New(fixed{}, counting{reads: true})
	if !reads.ReadsUsage() || !New(fixed{}).WithShadow(reads).ReadsUsage() || New(fixed{}).WithShadow(New()).ReadsUsage() {
		t.Error("one reads usage")
	}
}
