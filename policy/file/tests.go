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

// A RanTest is one test and what came of it.
type RanTest struct {
	Test  Test
	At    policy.Problem // its place, and what is wrong if it is red
	Green bool
}

// RunTests runs the tests of the files of all layers. The tests of a file are about its own layer: its lists, presets,
// Rego and ceiling. Other layers may be stricter, and open more; see [File.Overruled].
func (f *File) RunTests(ctx context.Context, env Environment) (all []RanTest, err error) {
	return f.runTests(ctx, &env, nil)
}

// runTests is RunTests. whole is the policy of all layers if it is made already, else nil.
func (f *File) runTests(ctx context.Context, env *Environment, whole *policy.Policy) (all []RanTest, err error) {
	p := whole
	if own := env.withoutOthers(); len(f.Tests) > 0 && (whole == nil || env.Layers.Organisation != nil || len(env.Layers.Projects) > 0 || len(own.Grants) < len(env.Grants)) {
		if p, err = f.assemble(&own); err != nil {
			return nil, err
		}
	}
	all = f.results(ctx, p)
	if o := env.Layers.Organisation; o != nil && len(o.Tests) > 0 {
		alone := env.bare()
		alone.Evaluators = env.Evaluators
		if p, err = o.assemble(&alone); err != nil {
			return nil, err
		}
		all = append(all, o.results(ctx, p)...)
	}
	for _, name := range slices.Sorted(maps.Keys(env.Layers.Projects)) {
		one := env.Layers.Projects[name]
		if !one.Opens || len(one.File.Tests) == 0 {
			continue
		}
		alone := env.bare()
		alone.Layers.Projects = map[string]WorkingTree{name: one}
		if p, err = roomy(name).assemble(&alone); err != nil {
			return nil, err
		}
		all = append(all, one.File.As(name).results(ctx, p)...)
	}
	return all, nil
}

func (f *File) results(ctx context.Context, p *policy.Policy) (all []RanTest) {
	for i, t := range f.Tests {
		at, green := f.RunTest(ctx, p, i)
		all = append(all, RanTest{t, at, green})
	}
	return all
}

// bare returns the environment without what other files say.
func (env *Environment) bare() Environment {
	return Environment{
		Self: env.Self, Listeners: env.Listeners, AdminListeners: env.AdminListeners, UpstreamAt: env.UpstreamAt,
		Inspection: env.Inspection,
	}
}

// withoutOthers returns the environment of the layer of the file that is compiled. Only an allow for a while is part of
// it: the tests are about what the file says, and would otherwise keep anybody from denying a host that they promise.
func (env *Environment) withoutOthers() Environment {
	own := *env
	own.Grants = slices.DeleteFunc(slices.Clone(env.Grants), func(g policy.Grant) bool { return g.Effect != policy.Allow })
	own.Layers.Projects = nil
	if env.Layers.Organisation != nil {
		own.Evaluators, own.Layers.Organisation = nil, nil
		own.Layers.Ceilings = slices.DeleteFunc(slices.Clone(env.Layers.Ceilings), func(c policy.Ceiling) bool { return c.Layer == policy.Organisation })
	}
	return own
}

// roomy returns a file that allows nothing itself, and under whose ceiling the project of a sandbox may open everything.
func roomy(sandbox string) *File {
	f := defaults()
	everything, _ := policy.ParsePattern("*:*") // which is a pattern
	f.Sandboxes = []SandboxRules{{Name: sandbox}}
	f.Ceiled, f.Ceiling = true, []policy.Rule{{ID: "ceiling[0]", Pattern: everything}}
	return &f
}

// test runs the tests of all files, where whole is the policy of all layers. The error has the red ones of the first file
// that has any.
func (f *File) test(env *Environment, whole *policy.Policy) error {
	all, err := f.runTests(context.Background(), env, whole)
	if err != nil {
		return err
	}
	var red policy.FileError
	for _, r := range all {
		if !r.Green && (len(red) == 0 || red[0].File == r.At.File) {
			red = append(red, r.At)
		}
	}
	if len(red) > 0 {
		return red.Sorted()
	}
	return nil
}
