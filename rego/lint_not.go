package rego

import (
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// undefined looks for calls under not of a field that a request may lack. Trap: OPA
// works out the operands of a call before the not, so where one is undefined, so is
// the condition, and a rule that was to refuse everything else passes the request.
func (l *linter) undefined(m *ast.Module) {
	ast.WalkExprs(m, func(x *ast.Expr) bool {
		if !x.Negated || !x.IsCall() || l.tested(x) != nil { // of which negations has more to say
			return false
		}
		for _, operand := range x.Operands() {
			if _, isRef := operand.Value.(ast.Ref); isRef && isEqual(x) {
				continue // of two plain sides that are compared, both are looked up below the not
			}
			if ref := lacking(operand); ref != nil {
				l.say(operand, fmt.Sprintf("where a request has no %s this is undefined, and not true; give the condition without \"not\" to a rule, and write not and the name of that rule", ref))
			}
		}
		return false
	})
}

func isEqual(x *ast.Expr) bool {
	operator := dotted(x.Operator())
	return operator == "equal" || operator == "eq"
}

// lacking returns a field that requests may lack, and of which a term is made, or
// nil. A comprehension without it is empty, and defined.
func lacking(t *ast.Term) (found ast.Ref) {
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension:
			return true
		case ast.Ref:
			if found == nil && mayLack(x) {
				found = x
			}
		}
		return found != nil
	}).Walk(t)
	return found
}

// mayLack reports whether a request at its last stage may be without a field.
func mayLack(ref ast.Ref) bool {
	if !ref.HasPrefix(ast.InputRootRef) || len(ref) < 3 {
		return false
	}
	path := append(words(ref[1:]), "")
	switch path[0] {
	case "http":
		return slices.Contains([]string{"query", "body_size"}, path[1]) || path[1] == "headers" && len(ref) > 3
	case "tls":
		return true
	case "destination":
		return path[1] == "registrable"
	case "sandbox":
		return path[1] == "labels"
	}
	return false
}
