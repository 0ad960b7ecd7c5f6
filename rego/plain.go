package rego

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/types"
)

// Plain returns the files that other tools need besides the policy, by name: the library in plain Rego,
// its short names such as host.any for each package that uses them, the schema of the input, and the
// capabilities. The last two have extensions that no tool reads as data.
func Plain(sources []Source) (map[string][]byte, error) {
	files := map[string][]byte{"input.schema": InputSchema()}
	library, err := Library()
	if err != nil {
		return nil, err
	}
	for name, text := range library {
		files[strings.TrimPrefix(name, "lib/")] = text
	}
	if files["egressd.capabilities"], err = plainCapabilities(); err != nil {
		return nil, err
	}
	used, err := shortNames(sources)
	if err != nil {
		return nil, err
	}
	for _, pkg := range slices.Sorted(maps.Keys(used)) {
		files["short_"+fileWord(pkg)+".rego"] = shortModule(pkg, used[pkg])
	}
	files["builtins.rego"] = passedOn()
	return files, nil
}

// shortNames returns, by package, the prefixes of library functions that modules call without an import.
func shortNames(sources []Source) (map[string]map[string]bool, error) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}, tests: true}
	for _, s := range sources {
		if problems := set.add(s); len(problems) > 0 {
			return nil, problems
		}
	}
	used := map[string]map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		m := set.modules[name]
		declared := declaredIn(set.modules, m.Package)
		for _, call := range callsIn(m) {
			operator, ok := call[0].Value.(ast.Ref)
			if !ok || declared[string(headOf(operator))] || libraryFunctions[dotted(operator)] == "" {
				continue
			}
			if pkg := m.Package.String(); used[pkg] == nil {
				used[pkg] = map[string]bool{}
			}
			used[m.Package.String()][string(headOf(operator))] = true
		}
		if used[m.Package.String()]["time"] && callsClock(m) {
			return nil, problemsOf(name, ast.Errors{ast.NewError(ast.CompileErr, m.Package.Location, "other tools cannot have both time.now_ns and the library's time without an import; write: import data.egressd.time as hours")})
		}
	}
	return used, nil
}

func callsClock(m *ast.Module) bool {
	return slices.ContainsFunc(callsIn(m), func(call []*ast.Term) bool {
		operator, ok := call[0].Value.(ast.Ref)
		return ok && dotted(operator) == "time.now_ns"
	})
}

// fileWord returns a package name as part of a file name.
func fileWord(pkg string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, strings.TrimPrefix(pkg, "package "))
}

// builtinsPackage holds built-ins whose names a package gives to the library.
const builtinsPackage = "egressd.builtins"

// shortModule returns a module that defines the short names of the library in a package, and the built-ins
// that these names hide.
func shortModule(pkg string, heads map[string]bool) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by egressd policy build --library, for tools other than egressd: the library by\n# the names that it has there without an import.\n%s\n", pkg)
	for _, name := range slices.Sorted(maps.Keys(libraryFunctions)) {
		if head, _, _ := strings.Cut(name, "."); heads[head] {
			arguments := parameters(libraryArity(name))
			fmt.Fprintf(&b, "\n%s(%s) := data.egressd.%s(%s)\n", name, arguments, name, arguments)
		}
	}
	for _, builtin := range hiddenBuiltins() {
		if head, _, _ := strings.Cut(builtin.Name, "."); heads[head] {
			arguments := parameters(builtin.Decl.Arity())
			fmt.Fprintf(&b, "\n%s(%s) := data.%s.%s(%s)\n", builtin.Name, arguments, builtinsPackage, flat(builtin.Name), arguments)
		}
	}
	return b.Bytes()
}

func passedOn() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by egressd policy build --library: built-ins for packages in which the library has\n# the name before the point.\npackage %s\n", builtinsPackage)
	for _, builtin := range hiddenBuiltins() {
		arguments := parameters(builtin.Decl.Arity())
		fmt.Fprintf(&b, "\n%s(%s) := %s(%s)\n", flat(builtin.Name), arguments, builtin.Name, arguments)
	}
	return b.Bytes()
}

// hiddenBuiltins are the built-ins with the prefix of a library function. Rego cannot define a function
// without arguments.
func hiddenBuiltins() (all []*ast.Builtin) {
	for _, b := range sealed().Builtins {
		head, _, dotted := strings.Cut(b.Name, ".")
		if dotted && (head == "net" || head == "time") && !b.IsDeprecated() && b.Decl.Arity() > 0 && b.Decl.Result() != nil {
			all = append(all, b)
		}
	}
	return all
}

func flat(name string) string { return strings.ReplaceAll(name, ".", "_") }

func parameters(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("x%d", i+1)
	}
	return strings.Join(names, ", ")
}

// libraryArity returns the number of arguments of a library function.
func libraryArity(name string) int { return len(libraryDeclaration(name).FuncArgs().Args) }

func libraryDeclaration(name string) *types.Function {
	if n, ok := natives(newCompiledLists())[strings.TrimPrefix(libraryFunctions[name], "egressd.")]; ok {
		return types.NewFunction(n.arguments, n.result)
	}
	arguments := map[string]int{"time.office_hours": 2, "time.on": 3, "time.between": 4}[name]
	return types.NewFunction(slices.Repeat([]types.Type{types.A}, arguments), types.B)
}

// plainCapabilities returns the capabilities with the library's short names as built-ins, so that "opa
// check" and "opa build" accept them without the library's files.
func plainCapabilities() ([]byte, error) {
	c := sealed()
	for _, name := range slices.Sorted(maps.Keys(libraryFunctions)) {
		c.Builtins = append(c.Builtins, &ast.Builtin{Name: name, Decl: libraryDeclaration(name)})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(c); err != nil {
		return nil, fmt.Errorf("writing the capabilities: %w", err)
	}
	return b.Bytes(), nil
}
