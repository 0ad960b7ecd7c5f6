package policy

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A drawnStack is opinions of every layer.
type drawnStack struct {
	above, below, ceilings []fixed
	fallback               Verdict
	inspection             bool
}

func drawStack(t *rapid.T) drawnStack {
	return drawnStack{
		above: drawOpinions(t), below: drawOpinions(t), ceilings: drawOpinions(t),
		fallback:   rapid.SampledFrom([]Verdict{Deny, Allow}).Draw(t, "default"),
		inspection: rapid.Bool().Draw(t, "inspection"),
	}
}

func (s drawnStack) policy() *Policy {
	p := &Policy{fallback: s.fallback, inspection: s.inspection}
	for _, o := range s.above {
		p.evaluators = append(p.evaluators, o)
	}
	for _, o := range s.below {
		p.below = append(p.below, o)
	}
	for _, o := range s.ceilings {
		p.ceilings = append(p.ceilings, Ceiling{o, Organisation})
	}
	return p
}

// with adds an opinion to one of the layers: 0 above, 1 below, 2 a ceiling.
func (s drawnStack) with(layer int, o fixed) drawnStack {
	list := []*[]fixed{&s.above, &s.below, &s.ceilings}[layer]
	*list = append(slices.Clone(*list), o)
	return s
}

// A layer below the organisation opens a request only if no layer above has an opinion;
// the organisation opens one only if it has no other opinion itself. No other added
// evaluator loosens, except for the hello of [TestAddingAnEvaluatorNeverLoosens].
func TestAddingToALayerNeverLoosens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, r, extra := drawStack(t), drawRequest(t), drawOpinion(t, "extra")
		layer := rapid.IntRange(0, 2).Draw(t, "layer")
		before, after := s.policy().Decide(t.Context(), r), s.with(layer, extra).policy().Decide(t.Context(), r)
		loud := func(o fixed) bool { return !o.abstains() }
		others := [][]fixed{s.above, slices.Concat(s.above, s.below), {extra}}[layer]
		if layer < 2 && !slices.ContainsFunc(others, loud) {
			return
		}
		if before.Class == ECHRefused && after.Verdict != Allow {
			return
		}
		if after.Verdict > before.Verdict {
			t.Fatalf("%v became %v with %+v in layer %d", before.Verdict, after.Verdict, extra, layer)
		}
	})
}

func TestNothingBelowIsOpenedOutsideOfACeiling(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, r := drawStack(t), drawRequest(t)
		s.above = slices.DeleteFunc(s.above, func(o fixed) bool { return !o.abstains() })
		shut := drawOpinion(t, "shut")
		shut.decision.Verdict = rapid.SampledFrom([]Verdict{Deny, Ask, Abstain, Abstain + 1}).Draw(t, "no room")
		s.ceilings = append(s.ceilings, shut)
		if d := s.policy().Decide(t.Context(), r); d.Verdict != Deny {
			t.Fatalf("%+v", d)
		}
	})
}

func TestTheOrderWithinALayerNeverMatters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, r := drawStack(t), drawRequest(t)
		turned := s
		turned.above = rapid.Permutation(s.above).Draw(t, "above")
		turned.below = rapid.Permutation(s.below).Draw(t, "below")
		turned.ceilings = rapid.Permutation(s.ceilings).Draw(t, "ceilings")
		first, second := s.policy().Decide(t.Context(), r), turned.policy().Decide(t.Context(), r)
		if first.Verdict != second.Verdict || first.Needs != second.Needs || first.AnyProtocol != second.AnyProtocol || first.ECH != second.ECH || first.Upgrade != second.Upgrade {
			t.Fatalf("%+v became %+v", first, second)
		}
	})
}

// An error of a ceiling keeps shut what it would have been asked about.
func TestAnErrorInALayerNeverAllows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, r := drawStack(t), drawRequest(t)
		layer := rapid.IntRange(0, 2).Draw(t, "layer")
		if layer == 2 {
			s.above = nil
		}
		broken := fixed{decision: Decision{Verdict: Allow}, err: errors.New("evaluator is broken")}
		if d := s.with(layer, broken).policy().Decide(t.Context(), r); d.Verdict != Deny {
			t.Fatalf("%+v", d)
		}
	})
}
