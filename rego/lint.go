package rego

import (
	"cmp"
	"maps"
	"slices"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
)

// Lint returns likely mistakes in a policy: host conditions that also hold for foreign hosts, comparisons
// that never hold, negations that a request can bypass, comparisons with an encoded query, and bodies that nobody holds. It leaves out tests. Errors are left to [Load].
func Lint(sources []Source) (found []policy.Problem) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}}
	for _, s := range sources {
		set.add(s)
	}
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		l := linter{hosts: hostVariables(set.modules[name]), addresses: addressVariables(set.modules[name]), queries: queryVariables(set.modules[name]), data: &set}
		for _, call := range callsIn(set.modules[name]) {
			l.call(call)
		}
		l.negations(set.modules[name])
		l.undefined(set.modules[name])
		l.bodies(set.modules[name])
		slices.SortFunc(l.found, func(a, b policy.Problem) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		found = append(found, l.found...)
	}
	found = append(found, lintCompiled(sources)...)
	slices.SortStableFunc(found, compareProblems)
	return slices.Compact(found)
}

// A linter examines one module.
type linter struct {
	hosts     map[ast.Var]bool // variables that hold a host
	addresses map[ast.Var]bool // variables that hold an address of the destination
	queries   map[ast.Var]bool // variables that hold the query of the request
	data      *sourceSet
	found     []policy.Problem

	// asks are the rules and functions that test in which network a host lies. The function returns the
	// tested term from the arguments of a call.
	asks map[string]func(arguments []*ast.Term) *ast.Term
}

func (l *linter) call(call []*ast.Term) {
	if operator, ok := call[0].Value.(ast.Ref); ok {
		l.query(dotted(operator), call[1:])
	}
}

func (l *linter) say(at *ast.Term, message string) {
	l.found = append(l.found, problemAt(at.Location, message))
}

// isHost reports whether a term holds a host: an input field, a variable that was assigned one, or a call
// that only changes its case.
func (l *linter) isHost(t *ast.Term) bool {
	switch v := t.Value.(type) {
	case ast.Ref:
		return isHostField(v) || len(v) == 1 && l.hosts[headOf(v)]
	case ast.Var:
		return l.hosts[v]
	case ast.Call:
		operator, ok := v[0].Value.(ast.Ref)
		return ok && len(v) >= 2 && slices.Contains([]string{"lower", "upper", "trim_suffix"}, dotted(operator)) && l.isHost(v[1])
	}
	return false
}

func isHostField(ref ast.Ref) bool {
	return slices.Contains([]string{"input.destination.host", "input.destination.registrable", "input.tls.sni", "input.dns.name"}, dotted(ref))
}

func hostVariables(m *ast.Module) map[ast.Var]bool {
	l := linter{hosts: map[ast.Var]bool{}}
	ast.WalkExprs(m, func(x *ast.Expr) bool {
		if !x.IsAssignment() && !x.IsEquality() {
			return false
		}
		if v, ok := x.Operand(0).Value.(ast.Var); ok && l.isHost(x.Operand(1)) {
			l.hosts[v] = true
		}
		return false
	})
	for _, r := range m.Rules {
		if r.Head.Value != nil && len(r.Head.Args) == 0 && l.isHost(r.Head.Value) {
			l.hosts[headOf(r.Head.Ref())] = true
		}
	}
	return l.hosts
}

// comparisons are the calls that compare text without decoding it.
var comparisons = []string{
	"eq", "equal", "neq", "contains", "startswith", "endswith", "regex.match", "glob.match", "internal.member_2",
	"indexof", "split", "strings.any_prefix_match", "strings.any_suffix_match",
}

// query finds comparisons with the encoded query.
func (l *linter) query(operator string, operands []*ast.Term) {
	if !slices.Contains(comparisons, operator) {
		return
	}
	for i, t := range operands {
		other := operands[(i+1)%len(operands)]
		if !l.isQuery(t) || operator == "eq" && isVariable(other) || other.Value.Compare(ast.String("")) == 0 {
			continue // eq may be an assignment
		}
		l.say(t, "the query is as the client wrote it, where %61dmin stands for admin; compare what urlquery.decode_object(input.http.query) returns")
		return
	}
}

// isQuery reports whether a term is the query of the request, or the query in another case.
func (l *linter) isQuery(t *ast.Term) bool {
	switch v := t.Value.(type) {
	case ast.Ref:
		return dotted(v) == "input.http.query"
	case ast.Var:
		return l.queries[v]
	case ast.Call:
		operator, ok := v[0].Value.(ast.Ref)
		return ok && len(v) == 2 && slices.Contains([]string{"lower", "upper"}, dotted(operator)) && l.isQuery(v[1])
	}
	return false
}

func isVariable(t *ast.Term) bool {
	_, ok := t.Value.(ast.Var)
	return ok
}

func queryVariables(m *ast.Module) map[ast.Var]bool {
	l := linter{queries: map[ast.Var]bool{}}
	ast.WalkExprs(m, func(x *ast.Expr) bool {
		if x.IsAssignment() || x.IsEquality() {
			if v, ok := x.Operand(0).Value.(ast.Var); ok && l.isQuery(x.Operand(1)) {
				l.queries[v] = true
			}
		}
		return false
	})
	return l.queries
}
