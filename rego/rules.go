package rego

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// A RuleAt is a rule of a deciding set and its position.
type RuleAt struct {
	Name    string // literal "rule" of its member, or ""
	Effect  policy.Verdict
	Package string         // such as "egress"
	Place   policy.Problem // position; the message is the first line of the rule
}

// Rules returns the deciding rules of a policy by file and line. It reads modules as written. Syntax
// errors are left to [Load].
func Rules(sources []Source) (all []RuleAt) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}}
	for _, s := range sources {
		set.add(s)
	}
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		m := set.modules[name]
		pkg := strings.Join(words(m.Package.Path[1:]), ".")
		if rootOf(m.Package.Path) != "egress" {
			continue
		}
		for _, r := range m.Rules {
			if effect, ok := effectOf(r); ok {
				first, _, _ := strings.Cut(string(r.Location.Text), "\n")
				all = append(all, RuleAt{writtenName(r), effect, pkg, problemAt(r.Location, strings.TrimSpace(first))})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b RuleAt) int {
		return cmp.Or(cmp.Compare(a.Place.File, b.Place.File), cmp.Compare(a.Place.Line, b.Place.Line))
	})
	return all
}

func effectOf(r *ast.Rule) (policy.Verdict, bool) {
	ref := r.Head.Ref()
	for _, s := range decidingSets {
		if len(ref) > 0 && string(headOf(ref)) == s.name && r.Head.RuleKind() == ast.MultiValue {
			return s.verdict, true
		}
	}
	return policy.Deny, false
}

// writtenName returns the literal rule name of a member. It follows a variable in the head to its
// assignment in the body.
func writtenName(r *ast.Rule) string {
	name := literalRule(r.Head.Key)
	v, ok := r.Head.Key.Value.(ast.Var)
	if name != "" || !ok {
		return name
	}
	for _, expr := range r.Body {
		if !expr.IsEquality() && !expr.IsAssignment() || expr.Negated {
			continue
		}
		for i := range 2 {
			if expr.Operand(i).Value.Compare(v) == 0 {
				return literalRule(expr.Operand(1 - i))
			}
		}
	}
	return ""
}
