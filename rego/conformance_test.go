package rego

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/test/cases"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/util"
)

// leftOut is which cases of OPA's suite are expected to fail, and why.
//
//go:embed testdata/opa-left-out.txt
var leftOut string

// TestConformance runs OPA's own suite through what evaluates policies here: the
// built-ins that are kept, in their bounded forms, failing strictly. A case that fails
// and is not listed is red, and so is one that is listed and does not fail.
func TestConformance(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/open-policy-agent/opa").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	suite, err := cases.Load(filepath.Join(strings.TrimSpace(string(out)), "v1/test/cases/testdata/v1"))
	if err != nil || len(suite.Cases) < 2000 {
		t.Fatalf("%d cases, %v", len(suite.Cases), err)
	}
	expected := expectations(t)
	used := map[string]bool{}
	passed := 0
	for i := range suite.Cases {
		c := &suite.Cases[i]
		failure := runCase(t, c, true)
		if failure == nil {
			passed++
			continue
		}
		row := reasonFor(t, c, failure)
		if used[row] = true; !expected[row] {
			t.Errorf("%s: %v\nthe row would be: %s", c.Note, failure, row)
		}
	}
	for row := range expected {
		if !used[row] {
			t.Errorf("nothing fails any more by: %s", row)
		}
	}
	t.Logf("%d of %d cases pass, and %d are left out by %d rows", passed, len(suite.Cases), len(suite.Cases)-passed, len(expected))
}

func expectations(t *testing.T) map[string]bool {
	t.Helper()
	rows := map[string]bool{}
	for line := range strings.Lines(leftOut) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if rows[line] {
			t.Errorf("listed twice: %s", line)
		}
		rows[line] = true
	}
	return rows
}

var undefinedFunction = regexp.MustCompile(`undefined function ([a-z0-9_.]+)`)

// reasonFor returns the row that a failure belongs to: the built-in that is not
// kept, or the case by its name, which must pass where built-ins may fail.
func reasonFor(t *testing.T, c *cases.TestCase, failure error) string {
	t.Helper()
	if m := undefinedFunction.FindStringSubmatch(failure.Error()); m != nil {
		return "not kept: " + m[1]
	}
	if runCase(t, c, false) == nil {
		return "strict: " + c.Note
	}
	return "case: " + c.Note
}

// runCase returns what is wrong with the outcome of a case.
func runCase(t *testing.T, c *cases.TestCase, strict bool) error {
	t.Helper()
	for key, value := range c.Env {
		t.Setenv(key, value)
	}
	results, err := evaluateCase(c, strict)
	switch {
	case c.WantError != nil || c.WantErrorCode != nil:
		return failsAs(c, err)
	case err != nil:
		return err
	case c.WantResult == nil:
		return errors.New("the case wants nothing")
	}
	return compareResults(c, results)
}

func evaluateCase(c *cases.TestCase, strict bool) (topdown.QueryResultSet, error) {
	compiler, err := compileCase(c)
	if err != nil {
		return nil, err
	}
	body, err := ast.ParseBodyWithOpts(c.Query, ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV1})
	if err != nil {
		return nil, err
	}
	query, err := compiler.QueryCompiler().Compile(body)
	if err != nil {
		return nil, err
	}
	data := map[string]any{}
	if c.Data != nil {
		data = *c.Data
	}
	store, txn, err := openData(data)
	if err != nil {
		return nil, err
	}
	input, err := inputOfCase(c)
	if err != nil {
		return nil, err
	}
	return topdown.NewQuery(query).
		WithCompiler(compiler).
		WithStore(store).
		WithTransaction(txn).
		WithBuiltins(nativeFunctions(newCompiledLists())).
		WithInput(input).
		WithCancel(topdown.NewCancel()).
		WithStrictBuiltinErrors(strict).
		Run(context.Background())
}

// compileCase compiles as a policy is compiled, but for what is wanted of policies
// alone: the strict mode, the schema, and names that must not be taken.
func compileCase(c *cases.TestCase) (*ast.Compiler, error) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}}
	for i, text := range c.Modules {
		name := fmt.Sprintf("test-%d.rego", i)
		m, err := ast.ParseModuleWithOpts(name, text, ast.ParserOptions{Capabilities: sealed(), RegoVersion: ast.RegoV1})
		if err != nil {
			return nil, err
		}
		set.modules[name] = m
	}
	compiler, err := set.compiler(nil)
	if err != nil {
		return nil, err
	}
	compiler.WithStrict(false).WithSchemas(nil).WithPathConflictsCheck(nil)
	if compiler.Compile(set.modules); compiler.Failed() {
		return nil, compiler.Errors
	}
	return compiler, nil
}

func inputOfCase(c *cases.TestCase) (*ast.Term, error) {
	switch {
	case c.InputTerm != nil:
		return ast.ParseTerm(*c.InputTerm)
	case c.Input != nil:
		value, err := ast.InterfaceToValue(*c.Input)
		return ast.NewTerm(value), err
	}
	return nil, nil
}

func failsAs(c *cases.TestCase, err error) error {
	var failure *topdown.Error
	switch {
	case err == nil:
		return errors.New("it does not fail")
	case c.WantError != nil && !strings.Contains(err.Error(), *c.WantError):
		return fmt.Errorf("it fails otherwise: %w", err)
	case c.WantErrorCode != nil && (!errors.As(err, &failure) || failure.Code != *c.WantErrorCode):
		return fmt.Errorf("it fails with another code: %w", err)
	}
	return nil
}

func compareResults(c *cases.TestCase, results topdown.QueryResultSet) error {
	want, got := ast.NewSet(), ast.NewSet()
	for _, bindings := range *c.WantResult {
		value, err := ast.InterfaceToValue(bindings)
		if err != nil {
			return err
		}
		want.Add(ast.NewTerm(value))
	}
	for _, bindings := range results {
		row := map[string]any{}
		for name, term := range bindings {
			value, err := ast.JSON(term.Value)
			if err != nil {
				return err
			}
			if list, ok := value.([]any); ok && c.SortBindings {
				slices.SortFunc(list, util.Compare)
			}
			if !c.IgnoreGeneratedVars || !strings.HasPrefix(string(name), "__localq") {
				row[string(name)] = value
			}
		}
		value, err := ast.InterfaceToValue(row)
		if err != nil {
			return err
		}
		got.Add(ast.NewTerm(value))
	}
	if want.Compare(got) != 0 {
		return fmt.Errorf("want %v, got %v", want, got)
	}
	return nil
}
