package rego

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/types"

	"github.com/egressd/egressd/policy"
)

// headersAsText refuses a header that is used as one text: it is a list of values. OPA's types do not know,
// since the names of headers are not in the schema. Without this a comparison never holds, and a function of
// text fails once a request has the header.
func (set *sourceSet) headersAsText(c *ast.Compiler) (problems policy.FileError) {
	if !set.mentions("headers") {
		return nil
	}
	others := set.otherInputs()
	o := newOrigins(newFlow(set, c))
	o.calls(func(r *ast.Rule, call []*ast.Term) {
		if m := set.modules[r.Location.File]; m == nil || isOneOf(m, others) {
			return
		}
		for i, t := range call[1:] {
			if header := o.field(r, t, map[variable]bool{}); isHeader(header) {
				problems = append(problems, o.asText(r, call, i, header)...)
			}
		}
	})
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems)
}

// mentions reports whether a text stands in a module of the policy.
func (set *sourceSet) mentions(text ast.String) bool {
	for name, m := range set.modules {
		found := false
		ast.WalkTerms(m, func(t *ast.Term) bool {
			found = found || t.Value.Compare(text) == 0
			return found
		})
		if found && !strings.HasPrefix(name, libraryPrefix) {
			return true
		}
	}
	return false
}

var headersRef = httpRef.Append(ast.StringTerm("headers"))

func isHeader(ref ast.Ref) bool { return ref.HasPrefix(headersRef) && len(ref) == len(headersRef)+1 }

// A variable is one of a rule.
type variable struct {
	rule *ast.Rule
	name ast.Var
}

// field returns the field of the input that a term of a rule is, through variables, rules and object.get, or
// nil. It looks at no variable twice, since equalities lead from one to the other and back.
func (o *origins) field(r *ast.Rule, t *ast.Term, seen map[variable]bool) ast.Ref {
	switch v := t.Value.(type) {
	case ast.Ref:
		switch {
		case v.HasPrefix(ast.InputRootRef):
			return v
		case !v.HasPrefix(ast.DefaultRootRef):
			return below(o.field(r, v[0], seen), v[1:])
		}
		for _, rule := range o.compiler.GetRulesExact(v) {
			if len(rule.Head.Args) == 0 && rule.Head.RuleKind() == ast.SingleValue {
				return o.field(rule, rule.Head.Value, seen)
			}
		}
	case ast.Var:
		if seen[variable{r, v}] {
			return nil
		}
		seen[variable{r, v}] = true
		for _, from := range o.assigned(r)[v] {
			if ref := o.field(r, from, seen); ref != nil {
				return ref
			}
		}
		if i := slices.IndexFunc(r.Head.Args, t.Equal); i >= 0 {
			if sites := o.called[r.Ref().String()]; i < len(sites) && len(sites[i]) > 0 {
				return o.field(sites[i][0].rule, sites[i][0].term, seen)
			}
		}
		for _, call := range o.made[r][v] {
			if functionName(call) == "object.get" {
				return below(o.field(r, call[1], seen), pathOf(call[2]))
			}
		}
	}
	return nil
}

func below(ref ast.Ref, path []*ast.Term) ast.Ref {
	if ref == nil {
		return nil
	}
	return ref.Concat(path)
}

// pathOf returns the keys of an object.get, which takes one or a list.
func pathOf(key *ast.Term) (path []*ast.Term) {
	list, ok := key.Value.(*ast.Array)
	if !ok {
		return []*ast.Term{key}
	}
	list.Foreach(func(t *ast.Term) { path = append(path, t) })
	return path
}

// asText returns a problem if an argument of a call, a header, has to be a text.
func (o *origins) asText(r *ast.Rule, call []*ast.Term, argument int, header ast.Ref) policy.FileError {
	at := call[0].Location
	if at == nil || at.Row == 0 {
		at = r.Location
	}
	name := functionName(call)
	switch name {
	case "eq", "equal", "neq":
		other := call[2-argument%2]
		for _, v := range o.values(r, other) {
			if text, ok := v.value.(ast.String); ok && text != "" && (name != "eq" || other.Value.Compare(text) == 0) {
				return policy.FileError{problemAt(cmp.Or(placeFor(other, v), at), fmt.Sprintf("a header has a list of values; write %s in %s", text, header))}
			}
		}
		return nil // eq also assigns
	}
	b := ast.BuiltinMap[name]
	if b == nil {
		return nil
	}
	wants := b.Decl.FuncArgs().Args
	if argument >= len(wants) || types.Compare(unnamed(wants[argument]), types.S) != 0 {
		return nil
	}
	return policy.FileError{problemAt(at, fmt.Sprintf("a header has a list of values, and %s wants a text; write: some value in %s, and value in its place", name, header))}
}

func unnamed(t types.Type) types.Type {
	if named, ok := t.(*types.NamedType); ok {
		return named.Type
	}
	return t
}
