package policy

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
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

// A layer below the organisation opens something only where nobody above it has an
// opinion, and the organisation only where it has none itself: that is the only way
// in which one more evaluator can open, but for the hello of
// [TestAddingAnEvaluatorNeverLoosens].
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

func TestTheFirstLookUnderACeilingPromisesNothing(t *testing.T) {
	asks := rapid.SampledFrom([]string{"GET https://b.a.test/x/1", "POST https://a.test/y", "GET https://93.184.216.34/y", "POST http://c.b.a.test/y//x"})
	rapid.Check(t, func(t *rapid.T) {
		file := fileOf(anyLines(t))
		allows := slices.DeleteFunc(anyLines(t), func(line string) bool {
			return !strings.HasPrefix(line, "allow") || strings.Contains(line, "inject") || strings.Contains(line, "upgrade")
		})
		_, ceiling, _ := strings.Cut(strings.Split(fileOf(allows), "\n")[0], ": ")
		p := compiled(t, file+"ceiling: "+ceiling, inspecting)
		r := asking(t, asks.Draw(t, "ask"))
		seen := p.Decide(context.Background(), r)
		unseen := *r
		unseen.HTTP = nil
		before := p.Decide(context.Background(), &unseen)
		if before.Verdict == Allow && seen.Verdict != Allow || before.Verdict <= Ask && seen.Verdict == Allow {
			t.Fatalf("%s unseen, then %s", saying(before), saying(seen))
		}
	})
}

func TestTheBaselineHoldsUnderEveryLayer(t *testing.T) {
	env := Environment{Inspection: true, Layers: Layers{Organisation: organisation(t, "allow: ['*:*']\nceiling: ['*:*']"), Projects: project(t, "allow: ['*:*', '10.0.0.0/8:*']")}}
	p := compiled(t, "default: allow\nallow: ['*:*']", env)
	for _, addr := range []string{"10.0.0.1", "127.0.0.1", "169.254.169.254", "fd00::1"} {
		r := &Request{Sandbox: Sandbox{Name: "default"}, Destination: Destination{Host: addr, Addr: netip.MustParseAddr(addr), Port: 443}}
		if d := p.Decide(t.Context(), r); d.Verdict != Deny || d.Layer != Builtin {
			t.Errorf("%s: %s", addr, saying(d))
		}
	}
}
