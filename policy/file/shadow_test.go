package file

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestAFileWithSourcesInShadow compiles one: those in shadow stand in the place of
// those in force.
func TestAFileWithSourcesInShadow(t *testing.T) {
	file, err := Parse("egressd.yaml", []byte("version: 1\nallow: [a.test]\ndeny: [b.test]\nrego: [now, {path: next, mode: shadow}]\ntests: [allow a.test]\n"))
	if err != nil {
		t.Fatal(err)
	}
	now := answering(policy.Decision{Verdict: policy.Abstain})
	next := answering(policy.Decision{Class: policy.RuleDeny, Rule: "next", Layer: policy.Organisation})
	env := Environment{Evaluators: []policy.Evaluator{now}, Texts: [][]byte{[]byte("now")}, Shadow: []policy.Evaluator{next}, ShadowTexts: [][]byte{[]byte("next")}}
	p, err := file.Compile(env)
	if err != nil {
		t.Fatal(err) // the test of the file would be red in the shadow
	}
	r := requestTo(t, "a.test:443")
	if d := p.Compare(t.Context(), r, p.Decide(t.Context(), r), apart); d.Verdict != policy.Allow || d.Shadow == nil || d.Shadow.Rule != "next" {
		t.Errorf("a.test: %+v, shadow %+v", d, d.Shadow)
	}
	r = requestTo(t, "10.0.0.1:443")
	if d := p.Compare(t.Context(), r, p.Decide(t.Context(), r), apart); d.Class != policy.AddressDenied || d.Shadow != nil {
		t.Errorf("the baseline holds in both: %+v, shadow %+v", d, d.Shadow)
	}
	without := env
	without.Shadow, without.ShadowTexts = nil, nil
	if _, err := file.Compile(without); err == nil {
		t.Error("a shadow that nobody made was passed over")
	}
	if p.Digest() == p.Shadow().Digest() {
		t.Error("both have one digest")
	}
	env.ShadowTexts = [][]byte{[]byte("edited")}
	edited, err := file.Compile(env)
	if err != nil || edited.Digest() != p.Digest() || edited.Shadow().Digest() == p.Shadow().Digest() {
		t.Errorf("an edit of the shadow: %v, %s, %s", err, edited.Digest(), edited.Shadow().Digest())
	}
}

func TestSourcesInShadowAlone(t *testing.T) {
	file, err := Parse("egressd.yaml", []byte("version: 1\nrego: [{path: next, mode: shadow}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := file.Compile(Environment{Shadow: []policy.Evaluator{answering(policy.Decision{Verdict: policy.Allow, Rule: "next"})}})
	if err != nil {
		t.Fatal(err)
	}
	r := requestTo(t, "a.test:443")
	if d := p.Compare(t.Context(), r, p.Decide(t.Context(), r), apart); d.Class != policy.DefaultDeny || d.Shadow == nil || d.Shadow.Verdict != policy.Allow {
		t.Errorf("%+v, shadow %+v", d, d.Shadow)
	}
	if said := file.Warnings(); len(said) != 1 || !strings.Contains(said[0], "no allow rules: everything is denied") {
		t.Errorf("warnings: %q", said)
	}
}

// apart runs f on a goroutine.
func apart(f func()) { go f() }
