package egressd_test

import (
	"go/ast"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// receiver returns the name of the type that a method belongs to.
func receiver(f *ast.FuncDecl) string {
	of := f.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	if name, ok := of.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

// sharedTypeNames lists the type names that several packages declare, with these packages. The name of the package completes
// most of them, such as admin.Server.
const sharedTypeNames = "testdata/shared-type-names.txt"

// TestATypeNameStandsOnce compares the type names that several packages declare with those that may. Aliases and packages
// that only tests use do not count.
func TestATypeNameStandsOnce(t *testing.T) {
	packages := map[string][]string{} // by name
	for _, s := range sources(t) {
		if forTests.MatchString(s.pkg) {
			continue
		}
		for _, d := range s.file.Decls {
			types, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range types.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok && !spec.Assign.IsValid() && !slices.Contains(packages[spec.Name.Name], s.pkg) {
					packages[spec.Name.Name] = append(packages[spec.Name.Name], s.pkg)
				}
			}
		}
	}
	text, err := os.ReadFile(sharedTypeNames)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			listed[line] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		if len(packages[name]) < 2 {
			continue
		}
		slices.Sort(packages[name])
		row := name + " " + strings.Join(packages[name], " ")
		if !listed[row] {
			t.Errorf("several packages declare one type name: choose another one, or add this row to %s if each package needs this name: %s", sharedTypeNames, row)
		}
		delete(listed, row)
	}
	for row := range listed {
		t.Errorf("remove this row from %s, or correct it: %s", sharedTypeNames, row)
	}
}

// forTests matches packages that only tests and benchmarks use.
var forTests = regexp.MustCompile(`^(e2e|internal/lab|internal/test\w*|internal/fieldtest)(/|$)|test$`)
