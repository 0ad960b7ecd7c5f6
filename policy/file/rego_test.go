package file

import (
	"context"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

const withRego = "version: 1\nrego: [policy/, \"${HOME}/more.rego\"]\n"

func TestRegoIsExpandedAndNeedsAnEvaluator(t *testing.T) {
	f, err := Parse("f", []byte(withRego))
	if err != nil {
		t.Fatal(err)
	}
	if f, err = f.Expand(func(string) (string, bool) { return "/home/u", true }); err != nil || len(f.Rego) != 2 || f.Rego[1].Path != "/home/u/more.rego" {
		t.Fatal(f.Rego, err)
	}
	if w := f.Warnings(); len(w) != 0 {
		t.Errorf("warnings of a file that names rego: %q", w)
	}
	if p, err := f.Compile(Environment{}); err == nil || p != nil {
		t.Error("the file compiles, and what its rego denies is forgotten")
	}
	if _, err := f.Compile(Environment{Evaluators: []policy.Evaluator{voice{Verdict: policy.Abstain}}}); err != nil {
		t.Error(err)
	}
}

func TestAVariableOfRegoThatIsNotSetHasItsPlace(t *testing.T) {
	f, err := Parse("f", []byte("version: 1\nrego: [a, \"${NONE}/b\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Expand(func(string) (string, bool) { return "", false })
	if err == nil || !strings.HasPrefix(err.Error(), "f:2:11: rego[1]: the variable NONE is not set") {
		t.Error(err)
	}
}

// TestTheDigestCoversWhatStandsBesideTheFile has no two lists of texts share a
// digest, however they are cut.
func TestTheDigestCoversWhatStandsBesideTheFile(t *testing.T) {
	seen := map[string][]string{}
	for _, texts := range [][]string{nil, {""}, {"ab"}, {"a", "b"}, {"b", "a"}, {"a", "", "b"}} {
		env := Environment{}
		for _, text := range texts {
			env.Texts = append(env.Texts, []byte(text))
		}
		digest := compiled(t, "allow: [a.test]", env).Digest()
		if before, twice := seen[digest]; twice {
			t.Errorf("%q and %q have one digest", before, texts)
		}
		seen[digest] = texts
	}
}

// TestTheFileAndAnotherEvaluatorCombine has a rule of the file that denies win; what only the other evaluator allows
// passes.
func TestTheFileAndAnotherEvaluatorCombine(t *testing.T) {
	for _, row := range []struct {
		lines string
		voice voice
		ask   string
		want  string
	}{
		{"deny: [a.test]", voice{Verdict: policy.Allow, Rule: "rego"}, "a.test", "deny rule-deny by deny[0]"},
		{"allow: [a.test]", voice{Verdict: policy.Deny, Class: policy.RuleDeny, Rule: "rego"}, "a.test", "deny rule-deny by rego"},
		{"allow: [b.test]", voice{Verdict: policy.Allow, Rule: "rego"}, "a.test", "allow by rego"},
		{"allow: [a.test]", voice{Verdict: policy.Abstain}, "a.test", "allow by allow[0]"},
		{"allow: [b.test]", voice{Verdict: policy.Abstain}, "a.test", "deny default-deny by default"},
		{"default: allow", voice{Verdict: policy.Deny, Class: policy.RuleDeny, Rule: "rego"}, "a.test", "deny rule-deny by rego"},
		{"allow: [a.test]", voice{Verdict: policy.Allow, Rule: "rego"}, "10.0.0.1:443", "deny address-denied by baseline"},
	} {
		p := compiled(t, row.lines, Environment{Evaluators: []policy.Evaluator{row.voice}})
		if p.AnswersAtOnce() {
			t.Errorf("%s: answers at once, with an evaluator that may take long", row.lines)
		}
		if got := saying(p.Decide(context.Background(), asking(t, row.ask))); got != row.want {
			t.Errorf("%s, %v: %q, want %q", row.lines, row.voice, got, row.want)
		}
	}
}

func TestRunTestHasThePlaceOfTheTest(t *testing.T) {
	f, err := Parse("f", []byte("version: 1\nallow: [a.test]\ntests:\n  - allow https://a.test/\n  - allow https://b.test/\n"))
	if err != nil {
		t.Fatal(err)
	}
	bare := *f
	bare.Tests = nil
	p, err := bare.Compile(Environment{})
	if err != nil {
		t.Fatal(err)
	}
	if at, green := f.RunTest(context.Background(), p, 0); !green || at.Line != 4 || at.Message != "" {
		t.Errorf("the first: %v, %v", at, green)
	}
	if at, green := f.RunTest(context.Background(), p, 1); green || at.Line != 5 || !strings.Contains(at.Message, "failed") {
		t.Errorf("the second: %v, %v", at, green)
	}
}

// TestATestIsRunAgainWherePolicyFails has an evaluator that is cut off at first, as on a
// machine that is busy, or always, as one that is too slow.
func TestATestIsRunAgainWherePolicyFails(t *testing.T) {
	for _, row := range []struct {
		failures int
		green    bool
	}{{2, true}, {3, false}} {
		f, err := Parse("f", []byte("version: 1\ntests: [allow https://a.test/]\n"))
		if err != nil {
			t.Fatal(err)
		}
		bare := *f
		bare.Tests = nil
		left := row.failures
		p, err := bare.Compile(Environment{Evaluators: []policy.Evaluator{failing{&left}}})
		if err != nil {
			t.Fatal(err)
		}
		if at, green := f.RunTest(context.Background(), p, 0); green != row.green {
			t.Errorf("after %d failures: %v, %v", row.failures, at, green)
		}
	}
}

// A failing evaluator fails as often as is left, and allows everything then.
type failing struct{ left *int }

func (f failing) Evaluate(context.Context, *policy.Request) (policy.Decision, error) {
	if *f.left--; *f.left >= 0 {
		return policy.Decision{}, context.DeadlineExceeded
	}
	return policy.Decision{Verdict: policy.Allow, Rule: "rego"}, nil
}
