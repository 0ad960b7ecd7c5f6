package file

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A Test is one line of "tests": a verdict, and a request that it is for.
type Test struct {
	// Want is Allow, Deny or Ask. A host alone, without a request, counts as
	// allowed where some of its requests are.
	Want    policy.Verdict
	Text    string
	Request policy.Request

	at policy.Position
}

func parseTest(text string) (Test, error) {
	word, rest, _ := strings.Cut(text, " ")
	test := Test{Text: text}
	switch word {
	case "allow":
		test.Want = policy.Allow
	case "deny":
		test.Want = policy.Deny
	case "ask":
		test.Want = policy.Ask
	default:
		return Test{}, fmt.Errorf("%q does not begin with allow, deny or ask; write one, then a request like GET https://example.com/", printable(text))
	}
	var err error
	test.Request, err = ParseCheck(rest)
	return test, err
}

// testAttempts is how often a test is tried if the policy fails to evaluate it. On a busy machine an evaluation can run
// out of time, which says nothing about the rules.
const testAttempts = 3

// run decides what the test asks and returns an error that says what is red.
func (t *Test) run(ctx context.Context, p *policy.Policy) error {
	r := t.Request
	r.Usage = new(policy.Usage) // as at the start of a sandbox
	var d policy.Decision
	var cause string
	for range testAttempts {
		var judged policy.Request
		d, judged = p.Judge(ctx, r)
		if cause = failure(ctx, p, &d, &judged); cause == "" {
			break
		}
	}
	if cause != "" {
		return fmt.Errorf("the test %q failed, whatever it expects: %s; correct the policy", t.Text, cause)
	}
	got := d.Verdict
	if got == policy.Inspect {
		got = policy.Allow
	}
	if got == t.Want {
		return nil
	}
	return fmt.Errorf("the test %q failed: expected %s, got %s from rule %s, layer %s (%s); correct the test or that rule",
		t.Text, t.Want, got, d.Rule, d.Layer, d.Reason)
}

// failure returns why a part of the policy could not be evaluated, or "". Such a test is red, even where another
// rule refuses the request as well.
func failure(ctx context.Context, p *policy.Policy, d *policy.Decision, judged *policy.Request) string {
	if d.Class == policy.PolicyError {
		return d.ReasonAndCause()
	}
	for _, o := range p.Opinions(ctx, judged) {
		if o.Decision.Class == policy.PolicyError {
			return o.Decision.ReasonAndCause()
		}
	}
	return ""
}

// As returns a copy of f whose tests are asked by a sandbox.
func (f *File) As(sandbox string) *File {
	out := *f
	out.Tests = slices.Clone(f.Tests)
	for i := range out.Tests {
		out.Tests[i].Request.Sandbox.Name = sandbox
	}
	return &out
}

// RunTest runs the test f.Tests[i] against p, and says what is wrong where it is
// red. It judges the rules as they are written: as if every tunnel could be
// inspected, and nothing were learned. The problem has the test's place either way.
func (f *File) RunTest(ctx context.Context, p *policy.Policy, i int) (_ policy.Problem, green bool) {
	written := p.AsWritten()
	at := f.Tests[i].at
	problem := policy.Problem{File: f.name, Line: at.Line, Column: at.Column}
	if err := f.Tests[i].run(ctx, written); err != nil {
		problem.Message = err.Error()
		return problem, false
	}
	return problem, true
}

func (f *File) runTests(p *policy.Policy) error {
	var red policy.FileError
	for i := range f.Tests {
		if problem, ok := f.RunTest(context.Background(), p, i); !ok {
			red = append(red, problem)
		}
	}
	if len(red) > 0 {
		return red.Sorted()
	}
	return nil
}

// runOthersTests runs the tests of the other files: the organisation's against its
// own layer alone, since users may be stricter, and each project's as its sandbox.
func (f *File) runOthersTests(env *Environment, p *policy.Policy) error {
	if o := env.Layers.Organisation; o != nil && len(o.Tests) > 0 {
		alone := Environment{Self: env.Self, Listeners: env.Listeners, AdminListeners: env.AdminListeners, Evaluators: env.Evaluators, Shadow: env.Shadow, Inspection: env.Inspection}
		if _, err := o.Compile(alone); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env.Layers.Projects)) {
		one := env.Layers.Projects[name]
		if !one.Opens {
			continue
		}
		if err := one.File.As(name).runTests(p); err != nil {
			return err
		}
	}
	return nil
}
