package rego

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// answers looks at the answers of policies for Envoy and AuthBridge. An object without the
// key "allowed", or with a key that changes the request, is an error for each request.
func (l *linter) answers(m *ast.Module) {
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		for _, r := range m.Rules {
			rule := dotted(m.Package.Path) + "." + dotted(r.Head.Ref())
			if s := shapes[name]; slices.Contains(s.asked, strings.TrimPrefix(rule, "data.")) {
				for ; r != nil; r = r.Else {
					l.answer(s, r)
				}
			}
		}
	}
}

// answer looks at the object that a rule answers with, where the rule writes it out.
func (l *linter) answer(s *shape, r *ast.Rule) {
	t := r.Head.Value
	if v, ok := t.Value.(ast.Var); ok {
		ast.WalkExprs(r.Body, func(x *ast.Expr) bool {
			if (x.IsAssignment() || x.IsEquality()) && x.Operand(0).Value.Compare(v) == 0 {
				t = x.Operand(1)
			}
			return false
		})
	}
	object, ok := t.Value.(ast.Object)
	if !ok {
		return
	}
	allows := object.Get(ast.StringTerm(s.allows))
	if allows == nil {
		l.say(t, fmt.Sprintf("this answer has no %q, so it denies every request; write {%q: true}, or true", s.allows, s.allows))
		return
	}
	if allows.Value.Compare(ast.Boolean(false)) == 0 {
		return
	}
	for _, key := range s.changes {
		if member := object.Get(ast.StringTerm(key)); member != nil && (width(member) > 0 || !isCollection(member)) {
			l.say(t, fmt.Sprintf("this answer changes the request by %q, which egressd does not do, so it denies every request; leave that out", key))
		}
	}
}
