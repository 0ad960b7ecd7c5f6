package waysin

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestCoverage prints, with -v, which case is covered where, and which is
// left for later, and why. A case may not be both.
func TestCoverage(t *testing.T) {
	covered := map[string][]string{}
	for _, v := range world.Vectors(t) {
		covered[v.ID] = add(covered[v.ID], "vectors")
	}
	for id, tests := range writtenOut(t) {
		covered[id] = append(covered[id], tests...)
	}
	left := map[string]string{}
	world.ReadJSON(t, world.Source("testdata", "conformance", world.LeftFile), &left)
	for id := range left {
		if covered[id] != nil {
			t.Errorf("%s is covered by %s and also left", id, covered[id])
		}
	}
	printGroups(t, "covered", covered, func(id string) string { return strings.Join(covered[id], ", ") })
	printGroups(t, "left", left, func(id string) string { return left[id] })
}

func printGroups[V any](t *testing.T, what string, cases map[string]V, say func(id string) string) {
	groups := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(cases)) {
		group, _, _ := strings.Cut(id, "-")
		groups[group] = append(groups[group], id)
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		t.Logf("%s %s: %d", group, what, len(groups[group]))
		for _, id := range groups[group] {
			t.Logf("  %s: %s", id, say(id))
		}
	}
}

func add(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// writtenOut finds the calls of Covers, and returns the tests by case.
func writtenOut(t *testing.T) map[string][]string {
	t.Helper()
	var files []string
	for _, folder := range []string{world.Source("e2e", "*"), world.Source("audit")} {
		found, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	tests := map[string][]string{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				for _, id := range casesOf(f) {
					tests[id] = append(tests[id], f.Name.Name)
				}
			}
		}
	}
	return tests
}

// casesOf returns the arguments of calls of Covers, or of covers of package audit, in a test.
func casesOf(f *ast.FuncDecl) (ids []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch f := call.Fun.(type) {
		case *ast.Ident:
			ok = f.Name == "covers"
		case *ast.SelectorExpr:
			ok = f.Sel.Name == "Covers"
		default:
			ok = false
		}
		if !ok {
			return true
		}
		for _, arg := range call.Args[1:] {
			if lit, ok := arg.(*ast.BasicLit); ok {
				id, _ := strconv.Unquote(lit.Value)
				ids = append(ids, id)
			}
		}
		return true
	})
	return ids
}
