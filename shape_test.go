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

// mostMethods bounds the methods of the types that everything meets in, so that they can only become fewer. A type with
// more than fifteen methods has a second type inside: give a new method to that one.
var mostMethods = map[string]struct{ exported, all int }{
	"egress.Gate":           {12, 17},
	"egress.Flow":           {4, 12},
	"egress.attempt":        {4, 14},
	"egress.recorded":       {4, 12},
	"egress.ruling":         {0, 9},
	"egress.permission":     {6, 15},
	"egress.carried":        {12, 15},
	"egress.dialling":       {5, 15},
	"daemon.Daemon":         {5, 33},
	"proxy.conn":            {4, 31},
	"daemon.granting":       {0, 14},
	"daemon.grantsAPI":      {3, 7},
	"daemon.adminListener":  {0, 13},
	"daemon.auditing":       {0, 12},
	"daemon.bundleFollower": {0, 13},
	"daemon.listeners":      {0, 9},
	"daemon.reloading":      {0, 9},
}

func TestTypesInTheMiddleStaySmall(t *testing.T) {
	type count struct{ exported, all int }
	counts := map[string]count{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			of := s.pkg + "." + receiver(f)
			n := counts[of]
			n.all++
			if f.Name.IsExported() {
				n.exported++
			}
			counts[of] = n
		}
	}
	for name, most := range mostMethods {
		switch got := counts[name]; {
		case got.exported > most.exported || got.all > most.all:
			t.Errorf("%s has %d exported methods and %d in all, at most %d and %d are allowed: move some to a type of its own", name, got.exported, got.all, most.exported, most.all)
		case got != count(most):
			t.Errorf("%s has only %d exported methods and %d in all: lower its row in mostMethods", name, got.exported, got.all)
		}
	}
}

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
