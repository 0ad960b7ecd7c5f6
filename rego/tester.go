package rego

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// testTime is the maximum time of one test.
const testTime = 5 * time.Second

// maxFailureBytes bounds the reason of a failure: OPA repeats an error for each element that it is about.
const maxFailureBytes = 512

// An Outcome is the outcome of a test.
type Outcome string

const (
	Pass Outcome = "pass"
	Fail Outcome = "fail"
	Skip Outcome = "skip" // the name begins with todo_
)

// A TestResult is the result of one rule test_NAME.
type TestResult struct {
	Name    string  `json:"test"` // with its package, such as "egress_test.test_uploads"
	File    string  `json:"file"`
	Line    int     `json:"line"`
	Outcome Outcome `json:"outcome"`
	Message string  `json:"message,omitempty"` // reason of a failure
	Output  string  `json:"output,omitempty"`  // of print statements
}

// A FileCoverage is the share of a module that its tests evaluated.
type FileCoverage struct {
	File    string
	Percent float64
	Missed  []LineRange // never evaluated
}

// A LineRange is an inclusive range of lines, from 1.
type LineRange struct{ First, Last int }

// A TestRun holds the results of a policy's tests.
type TestRun struct {
	Results  []TestResult   // by file and line
	Coverage []FileCoverage // by file
}

// Test runs the tests among sources in the same environment as decisions: the library, the built-ins, the
// input schema, and failing built-ins as failures. The error is a [policy.FileError] if the files do not
// compile.
func (o Options) Test(ctx context.Context, sources []Source) (*TestRun, error) {
	set, err := parse(sources, true)
	if err != nil {
		return nil, err
	}
	c, err := set.compiler(set.otherInputs())
	if err != nil {
		return nil, err
	}
	store, txn, err := openData(set.data)
	if err != nil {
		return nil, err
	}
	covered := cover.New()
	results, err := tester.NewRunner().
		SetCompiler(c.WithEnablePrintStatements(true)).
		SetModules(set.modules).
		SetStore(store).
		AddCustomBuiltins(testBuiltins()).
		RaiseBuiltinErrors(true).
		CapturePrintOutput(true).
		SetTimeout(testTime).
		SetCoverageQueryTracer(covered).
		RunTests(ctx, txn)
	if err != nil {
		return nil, problemsOf("", err)
	}
	run := &TestRun{}
	for r := range results {
		run.Results = append(run.Results, resultOf(r))
	}
	slices.SortFunc(run.Results, func(a, b TestResult) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Name, b.Name))
	})
	run.Coverage = set.coverage(covered)
	return run, ctx.Err()
}

// CheckTests compiles a policy with its tests without running them. The error is that of [Options.Test].
func (o Options) CheckTests(sources []Source) error {
	set, err := parse(sources, true)
	if err != nil {
		return err
	}
	c, err := set.check()
	if err != nil {
		return err
	}
	if problems := set.refusedConstants(c); len(problems) > 0 {
		return problems
	}
	return nil
}

// testBuiltins returns egressd's built-ins for the test runner.
func testBuiltins() (all []*tester.Builtin) {
	functions := nativeFunctions(newCompiledLists())
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		b := functions[name]
		all = append(all, &tester.Builtin{Decl: b.Decl, Func: rego.FunctionDyn(&rego.Function{Name: name, Decl: b.Decl.Decl}, called(b))})
	}
	return all
}

func called(b *topdown.Builtin) rego.BuiltinDyn {
	return func(c rego.BuiltinContext, operands []*ast.Term) (out *ast.Term, err error) {
		err = b.Func(c, operands, func(t *ast.Term) error {
			out = t
			return nil
		})
		return out, err
	}
}

func resultOf(r *tester.Result) TestResult {
	pkg, _ := strings.CutPrefix(r.Package, "data.")
	out := TestResult{Name: pkg + "." + r.Name, Outcome: Pass, Output: string(r.Output)}
	if r.Location != nil {
		out.File, out.Line = r.Location.File, r.Location.Row
	}
	switch {
	case r.Skip:
		out.Outcome = Skip
	case r.Error != nil:
		out.Outcome, out.Message = Fail, clip(strings.Join(strings.Fields(r.Error.Error()), " "), maxFailureBytes)
	case r.Fail:
		out.Outcome, out.Message = Fail, "it is not true"
		if names := failing(r.SubResults, ""); len(names) > 0 {
			out.Message = "it is not true for " + strings.Join(names, ", ")
		}
	}
	return out
}

func failing(cases tester.SubResultMap, above string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		one := cases[name]
		below := failing(one.SubResults, above+name+"/")
		if one.Fail && len(below) == 0 {
			below = []string{above + name}
		}
		names = append(names, below...)
	}
	return names
}

// coverage reports the coverage of all modules except the library and tests.
func (set *sourceSet) coverage(c *cover.Cover) (all []FileCoverage) {
	own := maps.Clone(set.modules)
	maps.DeleteFunc(own, func(name string, _ *ast.Module) bool {
		return strings.HasPrefix(name, libraryPrefix) || isTest(name)
	})
	report := c.Report(own)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		f := report.Files[name]
		one := FileCoverage{File: name, Percent: f.Coverage}
		if f.CoveredLines+f.NotCoveredLines == 0 {
			one.Percent = 100
		}
		for _, r := range f.NotCovered {
			one.Missed = append(one.Missed, LineRange{r.Start.Row, r.End.Row})
		}
		all = append(all, one)
	}
	return all
}

// isTest reports whether a file holds tests, which decide nothing.
func isTest(name string) bool { return strings.HasSuffix(name, "_test.rego") }

// Decides reports whether the file is not a test.
func (s Source) Decides() bool { return !isTest(s.Name) }
