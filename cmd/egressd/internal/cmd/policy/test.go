package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/rego"
	"github.com/spf13/cobra"
)

func newTest(f *policyFlags) *cobra.Command {
	var o policyTestOptions
	cmd := &cobra.Command{
		Use:   "test [PATH…]",
		Short: "Run the tests of a policy",
		Long: `Test runs the tests of the policy file and of its Rego: each rule named test_… in
files named …_test.rego, with the same restrictions as in production. With a PATH
it runs the tests of that policy file, of the policy file in that folder, or of
Rego files and folders alone.

Exit codes: 0 all passed; 1 a test failed; 2 they could not be run, or there are
none.`,
		Example: `  egressd policy test
  egressd policy test --config ./egressd.yaml --coverage
  egressd policy test --json policy/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config, o.json = f.config, f.json
			o.stderr = cmd.ErrOrStderr()
			return o.run(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	cmd.Flags().BoolVar(&o.coverage, "coverage", false, "list lines of Rego that no test evaluates")
	return cmd
}

type policyTestOptions struct {
	policyOptions
	coverage bool
}

type testView rego.TestResult

// A coverageView is what is said about one module.
type coverageView struct {
	File    string   `json:"file"`
	Percent float64  `json:"coverage_percent"`
	Missed  []string `json:"missed,omitempty"` // lines, as "3" or "3-5"
}

func (o *policyTestOptions) run(ctx context.Context, stdout io.Writer, paths []string) error {
	run := o.ofConfig
	if paths = o.policyFile(paths); len(paths) > 0 {
		run = func(ctx context.Context) ([]testView, []rego.FileCoverage, error) {
			return testRego(ctx, rego.Options{}, paths)
		}
	}
	tests, coverage, err := run(ctx)
	if err == nil && len(tests) == 0 {
		err = hint.Misused(errors.New("there are no tests"), "write rules test_NAME into a file NAME_test.rego, or tests: into the policy file")
	}
	if err != nil {
		return hint.Unsure(err)
	}
	if err := o.print(stdout, tests, coverage); err != nil {
		return err
	}
	for _, v := range tests {
		if v.Outcome == rego.Fail {
			return cli.Status(cli.ExitFailed)
		}
	}
	return nil
}

func testRego(ctx context.Context, asked rego.Options, paths []string) ([]testView, []rego.FileCoverage, error) {
	sources, err := config.ReadRego(paths)
	if err != nil {
		return nil, nil, hint.Misused(err, "egressd policy test FILE…, or a folder with .rego files")
	}
	tests, coverage, err := testSources(ctx, asked, sources)
	if names, egress := rego.Sandboxes(sources); err != nil || len(tests) == 0 || !egress && len(names) == 0 {
		return tests, coverage, err
	}
	if err := loads(asked, sources); err != nil { // the tests of what cannot be evaluated say nothing
		return nil, nil, hint.Misused(config.RegoError(err), "correct that, then egressd policy check "+shell.Word(paths[0]))
	}
	return tests, coverage, nil
}

func testSources(ctx context.Context, asked rego.Options, sources []rego.Source) (tests []testView, coverage []rego.FileCoverage, err error) {
	run, err := asked.Test(ctx, sources)
	if err != nil {
		return nil, nil, hint.Misused(config.RegoError(err), "correct that, then egressd policy check")
	}
	for _, r := range run.Results {
		tests = append(tests, testView(r))
	}
	return tests, run.Coverage, nil
}

// ofConfig runs the tests of the policy file, and those of the Rego that it names.
func (o *policyTestOptions) ofConfig(ctx context.Context) (tests []testView, coverage []rego.FileCoverage, err error) {
	cfg, err := o.load()
	if err != nil {
		return nil, nil, err
	}
	for _, w := range cfg.UnnamedTests() {
		if o.stderr != nil && !o.json {
			fmt.Fprintf(o.stderr, "egressd: warning: %s\n", printable.Text(w.String()))
		}
	}
	if tests, err = ownTests(ctx, cfg); err != nil {
		return nil, nil, err
	}
	parts, err := cfg.RegoParts(nil)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range parts {
		more, covered, err := testSources(ctx, p.Options, p.Sources)
		if err != nil {
			return nil, nil, err
		}
		tests, coverage = append(tests, more...), append(coverage, covered...)
	}
	return tests, coverage, nil
}

// ownTests runs the tests in the files of the policy.
func ownTests(ctx context.Context, c *config.Config) (tests []testView, err error) {
	if _, err := untested(c).Compile(); err != nil {
		return nil, err
	}
	results, err := c.RunTests(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		tests = append(tests, ownTest(r.Test, r.At, r.Green))
	}
	return tests, nil
}

// untested is the configuration without the tests that stand in its files, so that it
// compiles where one is red.
func untested(c *config.Config) *config.Config {
	out := *c
	out.File = withoutTests(c.File)
	if c.Organisation != nil {
		out.Organisation = untested(c.Organisation)
	}
	out.Projects = slices.Clone(c.Projects)
	for i, p := range c.Projects {
		if p.File != nil {
			one := *p
			one.File, out.Projects[i] = withoutTests(p.File), &one
		}
	}
	return &out
}

func withoutTests(f *file.File) *file.File {
	out := *f
	out.Tests = nil
	return &out
}

func ownTest(t file.Test, at policy.Problem, green bool) testView {
	v := testView{Name: t.Text, File: at.File, Line: at.Line, Outcome: rego.Pass}
	if !green {
		v.Outcome, v.Message = rego.Fail, at.Message
	}
	return v
}

func (o *policyTestOptions) print(w io.Writer, tests []testView, coverage []rego.FileCoverage) error {
	if !o.coverage {
		coverage = nil
	}
	if o.json {
		return printTestsJSON(w, tests, coverage)
	}
	var b strings.Builder
	count := map[rego.Outcome]int{}
	for i := range tests {
		count[tests[i].Outcome]++
		tests[i].write(&b, cli.PaletteFor(w))
	}
	for _, c := range coverage {
		fmt.Fprintf(&b, "%s: %.0f%% of it was evaluated%s\n", printable.Text(c.File), c.Percent, missedText(linesText(c.Missed)))
	}
	fmt.Fprintf(&b, "%d passed, %d failed, %d skipped\n", count[rego.Pass], count[rego.Fail], count[rego.Skip])
	_, err := io.WriteString(w, b.String())
	return err
}

func printTestsJSON(w io.Writer, tests []testView, coverage []rego.FileCoverage) error {
	shown := make([]coverageView, len(coverage))
	for i, c := range coverage {
		shown[i] = coverageView{c.File, c.Percent, linesText(c.Missed)}
	}
	return errors.Join(cli.PrintEach(w, tests), cli.PrintEach(w, shown))
}

// write says nothing about a test that is green.
func (v *testView) write(b *strings.Builder, colours cli.Palette) {
	switch v.Outcome {
	case rego.Fail:
		fmt.Fprintf(b, "%s %s:%d: %s: %s\n", colours.Mark("deny"), printable.Text(v.File), v.Line, printable.Text(v.Name), printable.Text(v.Message))
		for line := range strings.Lines(v.Output) {
			fmt.Fprintf(b, "    %s\n", printable.Text(strings.TrimRight(line, "\n")))
		}
	case rego.Skip:
		fmt.Fprintf(b, "%s %s:%d: %s: left out\n", colours.Mark("ask"), printable.Text(v.File), v.Line, printable.Text(v.Name))
	}
}

func linesText(all []rego.LineRange) (texts []string) {
	for _, l := range all {
		text := fmt.Sprint(l.First)
		if l.Last > l.First {
			text = fmt.Sprintf("%d-%d", l.First, l.Last)
		}
		if len(texts) == 0 || texts[len(texts)-1] != text {
			texts = append(texts, text)
		}
	}
	return texts
}

func missedText(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return ", but for lines " + strings.Join(lines, ", ")
}
