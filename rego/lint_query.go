package rego

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// comparisons are the calls that read a text as it is written.
var comparisons = []string{
	"eq", "equal", "neq", "contains", "startswith", "endswith", "regex.match", "glob.match", "internal.member_2",
	"indexof", "split", "strings.any_prefix_match", "strings.any_suffix_match",
}

// query looks for a comparison with the query as the client wrote it.
func (l *linter) query(operator string, operands []*ast.Term) {
	if !slices.Contains(comparisons, operator) {
		return
	}
	for i, t := range operands {
		other := operands[(i+1)%len(operands)]
		if !l.isQuery(t) || operator == "eq" && isVariable(other) || other.Value.Compare(ast.String("")) == 0 {
			continue // eq may give it to a variable
		}
		l.say(t, "the query is as the client wrote it, where %61dmin stands for admin; compare what urlquery.decode_object(input.http.query) returns")
		return
	}
}

// isQuery reports whether a term is the query of a request, or that in one case.
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

// queryVariables returns the variables that are given the query somewhere in a module.
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
