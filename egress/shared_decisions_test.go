package egress

import (
	"reflect"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/fieldtest"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestDecisionsThatDifferAreNotShared changes each field of a decision.
func TestDecisionsThatDifferAreNotShared(t *testing.T) {
	allows := func() *policy.Decision { return &policy.Decision{Verdict: policy.Allow, Rule: "r"} }
	for name, d := range fieldtest.Each(allows) {
		var s sharedDecisions
		s.of(*allows())
		if got := s.of(*d); !reflect.DeepEqual(got, d) {
			t.Errorf("a decision with another %s became %+v", name, got)
		}
	}
	var s sharedDecisions
	if first, again := s.of(*allows()), s.of(*allows()); first != again {
		t.Error("the same decision is kept twice")
	}
}

func TestAnIDKnowsItsTime(t *testing.T) {
	now := time.Now()
	if d := now.Sub(new(idSource).next(now).Time()); d < 0 || d >= record.IDTick {
		t.Errorf("%v off", d)
	}
}
