package rego

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

const notAList = "%s is no list in the data, so nothing is in it; write a list there"

// emptyLists refuses "x in data.list", "some x in data.list" and "every x in
// data.list" where the data has text, a number or null in the place of a list. Rego
// finds no member in it and says nothing: what denies by it never does, and every
// of nothing holds.
func (set *sourceSet) emptyLists(c *ast.Compiler) (problems policy.FileError) {
	for _, name := range slices.Sorted(maps.Keys(c.Modules)) {
		if strings.HasPrefix(name, libraryPrefix) {
			continue
		}
		given := givenFrom(ast.DefaultRootRef, c.Modules[name])
		ast.WalkExprs(c.Modules[name], func(x *ast.Expr) bool {
			list := listOf(x)
			if list == nil {
				return false
			}
			ref, ok := list.Value.(ast.Ref)
			if v, isVar := list.Value.(ast.Var); isVar {
				ref, ok = given[v]
			}
			if ok && set.holdsNone(ref) {
				problems = append(problems, problemAt(x.Location, fmt.Sprintf(notAList, ref)))
			}
			return false
		})
	}
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems)
}

// givenFrom returns the variables that the compiler has put in the place of a
// document below root, data or the input. No two of a module have the same name.
func givenFrom(root ast.Ref, m *ast.Module) map[ast.Var]ast.Ref {
	given := map[ast.Var]ast.Ref{}
	ast.WalkExprs(m, func(x *ast.Expr) bool {
		if !x.IsEquality() {
			return false
		}
		for _, pair := range [...][2]*ast.Term{{x.Operand(0), x.Operand(1)}, {x.Operand(1), x.Operand(0)}} {
			v, isVar := pair[0].Value.(ast.Var)
			ref, isRef := pair[1].Value.(ast.Ref)
			if isVar && isRef && ref.HasPrefix(root) {
				given[v] = ref
			}
		}
		return false
	})
	return given
}

// listOf returns what an expression looks for members in.
func listOf(x *ast.Expr) *ast.Term {
	if every, ok := x.Terms.(*ast.Every); ok {
		return every.Domain
	}
	if !x.IsCall() {
		return nil
	}
	switch x.Operator().String() {
	case "internal.member_2":
		return x.Operand(1)
	case "internal.member_3":
		return x.Operand(2)
	}
	return nil
}

// holdsNone reports whether a reference leads to data that has no members.
func (set *sourceSet) holdsNone(ref ast.Ref) bool {
	path := words(ref[1:])
	if len(path) != len(ref)-1 {
		return false
	}
	value, there := set.valueAt(path)
	return there && isScalar(value)
}

func isScalar(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

// valueAt returns what data holds at a path of keys.
func (set *sourceSet) valueAt(path []string) (any, bool) {
	var at any = set.data
	for _, key := range path {
		object, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = object[key]; !ok {
			return nil, false
		}
	}
	return at, true
}
