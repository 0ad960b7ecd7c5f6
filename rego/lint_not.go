package rego

import (
	"fmt"
	"slices"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

// undefined finds negated calls on fields that a request may lack. Trap: OPA evaluates the operands before
// the negation. If an operand is undefined, so is the condition, and a rule that should deny everything
// else lets the request pass.
func (l *linter) undefined(m *ast.Module) {
	ast.WalkExprs(m, func(x *ast.Expr) bool {
		if !x.Negated || !x.IsCall() || l.tested(x) != nil { // negations reports these in more detail
			return false
		}
		for _, operand := range x.Operands() {
			if _, isRef := operand.Value.(ast.Ref); isRef && isEqual(x) {
				continue // OPA evaluates both sides of a plain comparison below the negation
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

// lacking returns a field in t that a request may lack, or nil. It skips comprehensions, which are empty
// but defined without the field.
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

// mayLack reports whether a complete request may lack a field.
func mayLack(ref ast.Ref) bool {
	if !ref.HasPrefix(ast.InputRootRef) || len(ref) < 3 {
		return false
	}
	path := append(words(ref[1:]), "")
	switch path[0] {
	case "http":
		return slices.Contains([]string{"query", "body_size", "body"}, path[1]) || path[1] == "headers" && len(ref) > 3
	case "tls":
		return true
	case "destination":
		return path[1] == "registrable"
	case "sandbox":
		return path[1] == "labels"
	}
	return false
}

// cidrTests are the functions that test in which network an address lies. The map is never written.
var cidrTests = map[string]bool{
	"net.cidr_contains": true, "net.cidr_intersects": true, "net.cidr_contains_matches": true, // the network is the first operand
	"net.contains": true, "net.reaches": true, "net.any": true,
	"data.egressd.net.contains": true, "data.egressd.net.reaches": true, "data.egressd.net.any": true,
}

// negations finds negated network tests. A host name lies in no network, and one address outside a network
// says nothing about the others.
func (l *linter) negations(m *ast.Module) {
	l.networks(m)
	ast.WalkExprs(m, func(x *ast.Expr) bool {
		if !x.Negated {
			return false
		}
		switch of := l.tested(x); {
		case of == nil:
		case l.isAddress(of):
			l.say(of, "it holds where one address lies outside, whatever the others do; write: not net.any(PREFIXES, input.destination.addresses)")
		default:
			l.say(of, "a host that is a name lies in no network: the test fails, and every request to such a host with it; write: not net.any(PREFIXES, input.destination.addresses)")
		}
		return false
	})
}

// networks collects the rules and functions that test in which network a host lies.
func (l *linter) networks(m *ast.Module) {
	l.asks = map[string]func(arguments []*ast.Term) *ast.Term{}
	for _, r := range m.Rules {
		name := dotted(r.Head.Ref())
		ast.WalkExprs(r.Body, func(x *ast.Expr) bool {
			of := l.operandOf(x, func(t *ast.Term) bool { return l.isHost(t) || slices.ContainsFunc(r.Head.Args, t.Equal) })
			if of == nil {
				return false
			}
			at := slices.IndexFunc(r.Head.Args, of.Equal)
			l.asks[name] = func(arguments []*ast.Term) *ast.Term {
				if at >= 0 && at < len(arguments) && (l.isHost(arguments[at]) || l.isAddress(arguments[at])) {
					return arguments[at]
				}
				return nil
			}
			if at < 0 {
				l.asks[name] = func([]*ast.Term) *ast.Term { return of }
			}
			return false
		})
	}
}

// tested returns the host or address that a negated expression tests, directly or through a rule or
// function of the module.
func (l *linter) tested(x *ast.Expr) *ast.Term {
	if of := l.operandOf(x, func(t *ast.Term) bool { return l.isHost(t) || l.isAddress(t) }); of != nil {
		return of
	}
	name, arguments := "", []*ast.Term(nil)
	switch terms := x.Terms.(type) {
	case *ast.Term:
		name = nameOf(terms)
	case []*ast.Term:
		name, arguments = nameOf(terms[0]), terms[1:]
	}
	asks := l.asks[name]
	if asks == nil {
		return nil
	}
	of := asks(arguments)
	if of != nil && !slices.Contains(arguments, of) {
		return &ast.Term{Value: of.Value, Location: x.Location} // report the position of the negation
	}
	return of
}

func nameOf(t *ast.Term) string {
	switch v := t.Value.(type) {
	case ast.Var:
		return string(v)
	case ast.Ref:
		return dotted(v)
	}
	return ""
}

// operandOf returns the tested operand of a network test if meant accepts it.
func (l *linter) operandOf(x *ast.Expr, meant func(*ast.Term) bool) *ast.Term {
	if !x.IsCall() || !cidrTests[nameOf(x.OperatorTerm())] {
		return nil
	}
	if operands := x.Operands(); len(operands) == 2 && meant(operands[1]) {
		return operands[1]
	}
	return nil
}

// isAddress reports whether a term is an address of the destination: an element of the list, or a variable
// that iterates over it.
func (l *linter) isAddress(t *ast.Term) bool {
	switch v := t.Value.(type) {
	case ast.Ref:
		return len(v) == len(addressesRef())+1 && v.HasPrefix(addressesRef()) || len(v) == 1 && l.addresses[headOf(v)]
	case ast.Var:
		return l.addresses[v]
	}
	return false
}

var addressesRef = sync.OnceValue(func() ast.Ref { return ast.MustParseRef("input.destination.addresses") })

// addressVariables returns the variables that iterate over the addresses or are assigned one.
func addressVariables(m *ast.Module) map[ast.Var]bool {
	found := map[ast.Var]bool{}
	add := func(t, list *ast.Term, element bool) {
		v, ok := t.Value.(ast.Var)
		ref, isRef := list.Value.(ast.Ref)
		if ok && isRef && (ref.Equal(addressesRef()) && !element || element && len(ref) == len(addressesRef())+1 && ref.HasPrefix(addressesRef())) {
			found[v] = true
		}
	}
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.SomeDecl:
			for _, s := range x.Symbols {
				if call, ok := s.Value.(ast.Call); ok && len(call) >= 3 {
					add(call[len(call)-2], call[len(call)-1], false)
				}
			}
		case *ast.Every:
			add(x.Value, x.Domain, false)
		case *ast.Expr:
			if x.IsAssignment() || x.IsEquality() {
				add(x.Operand(0), x.Operand(1), true)
			}
		}
		return false
	}).Walk(m)
	return found
}
