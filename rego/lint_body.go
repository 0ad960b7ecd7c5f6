package rego

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

const (
	bodyUnheld  = "egressd does not hold the body for this, so it is absent; write input.http.body"
	bodyMissing = "a body without this member leaves the comparison undefined, so the rule does not deny it; write a rule that holds for the bodies that may pass, and deny with not and its name"
)

// bodies finds rules that read the body of a request in a way that egressd does not see, and denies that a body gets round
// by leaving a member out. Both let pass what they are written to stop.
func (l *linter) bodies(m *ast.Module) {
	for _, call := range callsIn(m) {
		if operator, ok := call[0].Value.(ast.Ref); ok && getsBody(dotted(operator), call[1:]) {
			l.say(call[1], bodyUnheld)
		}
	}
	for _, r := range m.Rules {
		holders := inputHolders(m, r)
		ast.NewGenericVisitor(func(x any) bool {
			if t, ok := x.(*ast.Term); ok {
				if ref, ok := t.Value.(ast.Ref); ok && readsBodyUnseen(ref, holders) {
					l.say(t, bodyUnheld)
				}
			}
			_, with := x.(*ast.With)
			return with
		}).Walk(r)
		if headOf(r.Head.Ref()) != "deny" {
			continue
		}
		for _, x := range r.Body {
			if x.Negated || !x.IsCall() || dotted(x.Operator()) != "neq" {
				continue
			}
			for _, t := range x.Operands() {
				if ref, ok := t.Value.(ast.Ref); ok && len(ref) > 3 && ref.HasPrefix(ast.InputRootRef) && slices.Equal(words(ref[1:3]), []string{"http", "body"}) {
					l.say(t, bodyMissing)
				}
			}
		}
	}
}

// aboveBody returns the names that lead from a term to the body, for the whole input and for input.http.
func aboveBody(t *ast.Term) []string {
	ref, ok := t.Value.(ast.Ref)
	switch {
	case !ok || !ref.HasPrefix(ast.InputRootRef):
		return nil
	case len(ref) == 1:
		return []string{"http", "body"}
	case len(ref) == 2 && slices.Equal(words(ref[1:]), []string{"http"}):
		return []string{"body"}
	}
	return nil
}

// inputHolders returns the variables of a rule that hold the whole input or input.http: assigned ones, and arguments of a function
// that the module calls with them. Each has the names that lead from it to the body.
func inputHolders(m *ast.Module, r *ast.Rule) map[ast.Var][]string {
	holders := map[ast.Var][]string{}
	ast.WalkExprs(r, func(x *ast.Expr) bool {
		if x.IsAssignment() || x.IsEquality() {
			if v, ok := x.Operand(0).Value.(ast.Var); ok && aboveBody(x.Operand(1)) != nil {
				holders[v] = aboveBody(x.Operand(1))
			}
		}
		return false
	})
	for _, call := range callsIn(m) {
		if nameOf(call[0]) != dotted(r.Head.Ref()) {
			continue
		}
		for i, argument := range r.Head.Args {
			if v, ok := argument.Value.(ast.Var); ok && i+1 < len(call) && aboveBody(call[i+1]) != nil {
				holders[v] = aboveBody(call[i+1])
			}
		}
	}
	return holders
}

// readsBodyUnseen reports whether a reference leads to the body, or may, without naming it from input on.
func readsBodyUnseen(ref ast.Ref, holders map[ast.Var][]string) bool {
	above := holders[headOf(ref)]
	if ref.HasPrefix(ast.InputRootRef) {
		above = []string{"http", "body"}
	}
	if above == nil || len(ref) < len(above)+1 {
		return false
	}
	variable := false
	for i, name := range above {
		switch key := ref[i+1].Value.(type) {
		case ast.String:
			if string(key) != name {
				return false
			}
		default:
			variable = true
		}
	}
	return variable || !ref.HasPrefix(ast.InputRootRef)
}

// getsBody reports whether a call takes the body out of the whole input, or out of input.http.
func getsBody(operator string, operands []*ast.Term) bool {
	if len(operands) < 2 {
		return false
	}
	above := aboveBody(operands[0])
	switch operator {
	case "object.get":
		path := []*ast.Term{operands[1]}
		if list, ok := operands[1].Value.(*ast.Array); ok {
			path = nil
			list.Foreach(func(t *ast.Term) { path = append(path, t) })
		}
		if above == nil || len(path) < len(above) {
			return false
		}
		for i, name := range above {
			if key, ok := path[i].Value.(ast.String); ok && string(key) != name {
				return false
			}
		}
		return true
	case "walk", "json.filter", "object.filter":
		return above != nil
	}
	return false
}
