package rego

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The library exists twice, with equal functions and tests. Folder lib is plain Rego for other tools.
// Folder native calls built-ins of egressd, which policies in egressd use.
//
//go:embed lib/*.rego native/*.rego
var libraryFiles embed.FS

// Library returns the library in plain Rego by file name, for other tools.
func Library() (map[string][]byte, error) { return readLibrary("lib") }

func readLibrary(dir string) (map[string][]byte, error) {
	names, err := fs.Glob(libraryFiles, dir+"/*.rego")
	if err != nil {
		return nil, fmt.Errorf("reading the library: %w", err)
	}
	files := make(map[string][]byte, len(names))
	for _, name := range names {
		if strings.HasSuffix(name, "_test.rego") {
			continue
		}
		if files[name], err = libraryFiles.ReadFile(name); err != nil {
			return nil, fmt.Errorf("reading the library: %w", err)
		}
	}
	return files, nil
}

// libraryPrefix precedes the file names of the library.
const libraryPrefix = "egressd:"

// libraryModules parses the native library. Its file names cannot clash with those of a policy, since a
// policy cannot use the library's packages.
func libraryModules() (map[string]*ast.Module, error) {
	files, err := readLibrary("native")
	if err != nil {
		return nil, err
	}
	modules := make(map[string]*ast.Module, len(files))
	for name, text := range files {
		m, err := ast.ParseModuleWithOpts(name, string(text), ast.ParserOptions{RegoVersion: ast.RegoV1})
		if err != nil {
			return nil, fmt.Errorf("reading the library: %w", err)
		}
		modules[libraryPrefix+name] = m
	}
	return modules, nil
}

// libraryFunctions are the functions that a module may call without an import, with their targets. The
// target is the built-in itself where possible, which saves a call. The map is never written.
var libraryFunctions = map[string]string{
	"host.matches": "egressd.host_matches", "host.any": "egressd.host_any", "host.canonical": "egressd.host_canonical",
	"net.class": "egressd.net_class", "net.contains": "egressd.net_contains", "net.reaches": "egressd.net_reaches",
	"net.any":      "egressd.net_any",
	"path.matches": "egressd.path_matches", "path.any": "egressd.path_any",
	"time.office_hours": "data.egressd.time.office_hours", "time.between": "data.egressd.time.between", "time.on": "data.egressd.time.on",
}

// adopt points calls without an import to the library, unless the module defines the name.
func adopt(m *ast.Module, declared map[string]bool) {
	for _, call := range callsIn(m) {
		operator, ok := call[0].Value.(ast.Ref)
		if !ok || len(operator) == 0 {
			continue
		}
		name, head := dotted(operator), string(headOf(operator))
		if libraryFunctions[name] != "" && !declared[head] {
			call[0].Value = located(ast.MustParseRef(libraryFunctions[name]), call[0].Location)
		}
	}
}

func headOf(ref ast.Ref) ast.Var {
	head, _ := ref[0].Value.(ast.Var)
	return head
}

// dotted joins the parts of a reference with dots.
func dotted(ref ast.Ref) string {
	parts := []string{string(headOf(ref))}
	for _, t := range ref[1:] {
		part, _ := t.Value.(ast.String)
		parts = append(parts, string(part))
	}
	return strings.Join(parts, ".")
}

func located(ref ast.Ref, at *ast.Location) ast.Ref {
	for i := range ref {
		ref[i] = ast.NewTerm(ref[i].Value).SetLocation(at)
	}
	return ref
}

// callsIn returns the terms of each call in a module or a rule, operator first. The target and the value of a "with"
// count as calls without operands.
func callsIn(x any) (calls [][]*ast.Term) {
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.Expr:
			if x.IsCall() {
				if terms, ok := x.Terms.([]*ast.Term); ok {
					calls = append(calls, terms)
				}
			}
		case *ast.With:
			calls = append(calls, []*ast.Term{x.Target}, []*ast.Term{x.Value})
		case *ast.Term:
			if call, ok := x.Value.(ast.Call); ok {
				calls = append(calls, call)
			}
		}
		return false
	}).Walk(x)
	return calls
}

func declaredIn(modules map[string]*ast.Module, pkg *ast.Package) map[string]bool {
	declared := map[string]bool{}
	for _, m := range modules {
		if !m.Package.Equal(pkg) {
			continue
		}
		for _, r := range m.Rules {
			declared[string(headOf(r.Head.Ref()))] = true
		}
		for _, i := range m.Imports {
			declared[string(i.Name())] = true
		}
	}
	return declared
}
