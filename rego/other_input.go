package rego

import (
	"slices"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
)

// otherInputs returns the packages that a rule asks with an input of its own, as in
// "data.envoy.authz.allow with input as {…}". The schema of egressd's input does not hold there. A test asks
// with an input of egressd's shape, so tests do not count, and nor does package egress.
func (set *sourceSet) otherInputs() (packages []ast.Ref) {
	asks := func(x *ast.Expr) bool {
		if slices.ContainsFunc(x.With, func(w *ast.With) bool { return w.Target.Value.Compare(ast.InputRootRef) == 0 }) {
			ast.WalkRefs(x.Terms, func(ref ast.Ref) bool {
				for _, m := range set.modules {
					if ref.HasPrefix(m.Package.Path) && rootOf(m.Package.Path) != "egress" {
						packages = append(packages, m.Package.Path)
					}
				}
				return false
			})
		}
		return false
	}
	for name, m := range set.modules {
		if !isTest(name) {
			ast.WalkExprs(m, asks)
		}
	}
	return packages
}

// mistyped returns the problems of types, without those in packages.
func (set *sourceSet) mistyped(packages []ast.Ref) (problems policy.FileError, err error) {
	c, err := set.compiler(nil)
	if err != nil {
		return nil, err
	}
	c.Compile(set.modules)
	for _, one := range c.Errors {
		m := set.modules[one.Location.File]
		if one.Code != ast.TypeErr || m == nil || !isOneOf(m, packages) {
			problems = append(problems, problemAt(one.Location, message(one)))
		}
	}
	return problems, nil
}

func isOneOf(m *ast.Module, packages []ast.Ref) bool {
	return slices.ContainsFunc(packages, func(p ast.Ref) bool { return p.Equal(m.Package.Path) })
}
