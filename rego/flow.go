package rego

import (
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// A flow tells which constants a term of a compiled module can have: through variables, rules and data. A
// flow ignores conditions, so some of the constants may never occur. Computed values are left out.
type flow struct {
	set      *sourceSet
	compiler *ast.Compiler
	given    map[*ast.Rule]map[ast.Var][]*ast.Term // what a variable of a rule is assigned
	seen     map[visit]bool                        // by the present search
}

// A visit is a look at a path in a variable of a rule.
type visit struct {
	variable
	path string
}

// enter reports whether a search has not looked there yet. Equal variables lead to each other: without this
// check, ten of them would be searched along millions of paths.
func (f *flow) enter(r *ast.Rule, v ast.Var, path string, depth int) bool {
	if depth == maxFlowDepth || f.seen == nil {
		f.seen = map[visit]bool{}
	}
	at := visit{variable{r, v}, path}
	entered := f.seen[at]
	f.seen[at] = true
	return !entered
}

// A constant is a value that a term can have.
type constant struct {
	value ast.Value
	at    *ast.Location // of the literal; nil for data
	from  string        // the data, such as "data.hosts"
}

const (
	maxFlowDepth  = 12
	maxFlowValues = 1 << 21 // more than any list that is loaded
)

func newFlow(set *sourceSet, c *ast.Compiler) *flow {
	return &flow{set: set, compiler: c, given: map[*ast.Rule]map[ast.Var][]*ast.Term{}}
}

// calls visits each call in the modules of the policy, with its rule.
func (f *flow) calls(visit func(r *ast.Rule, call []*ast.Term)) {
	for name, m := range f.compiler.Modules {
		if strings.HasPrefix(name, libraryPrefix) {
			continue
		}
		for _, r := range m.Rules {
			for ; r != nil; r = r.Else {
				one := *r
				one.Else = nil
				for _, call := range callsIn(&one) {
					visit(r, call)
				}
			}
		}
	}
}

// values returns the constants that a term of a rule can have.
func (f *flow) values(r *ast.Rule, t *ast.Term) []constant { return f.at(r, t, nil, maxFlowDepth) }

// members returns the constants that the members of a set or an array can have. A term that is neither
// counts as one member, which the function refuses.
func (f *flow) members(r *ast.Rule, t *ast.Term) []constant {
	return f.at(r, t, eachMember, maxFlowDepth)
}

// at returns the constants at a path within a term.
func (f *flow) at(r *ast.Rule, t *ast.Term, path ast.Ref, depth int) (all []constant) {
	if depth == 0 {
		return nil
	}
	switch v := t.Value.(type) {
	case ast.Var:
		if !f.enter(r, v, path.String(), depth) {
			return nil
		}
		for _, from := range f.assigned(r)[v] {
			all = append(all, f.at(r, from, path, depth-1)...)
		}
		return all
	case ast.Ref:
		return f.inRef(r, v, path, depth-1)
	case ast.Set, *ast.Array, ast.Object:
		if len(path) == 0 {
			return nil
		}
		selected(t, path[0], func(member *ast.Term) {
			all = append(all, f.at(r, member, path[1:], depth)...)
		})
		return all
	case ast.String, ast.Number, ast.Boolean, ast.Null:
		if len(path) > 0 && ast.IsConstant(path[0].Value) {
			return nil // it has no such member
		}
		return []constant{{value: v, at: t.Location}}
	}
	return nil
}

// selected visits the members of a composite value that a key may select.
func selected(t, key *ast.Term, visit func(*ast.Term)) {
	all := !ast.IsConstant(key.Value)
	switch v := t.Value.(type) {
	case ast.Set:
		v.Foreach(visit)
	case *ast.Array:
		for i := range v.Len() {
			if all || key.Equal(ast.IntNumberTerm(i)) {
				visit(v.Elem(i))
			}
		}
	case ast.Object:
		v.Foreach(func(k, member *ast.Term) {
			if all || k.Equal(key) {
				visit(member)
			}
		})
	}
}

// keys returns the constants that select a member of a collection: keys of an object, members of a set.
func (f *flow) keys(r *ast.Rule, t *ast.Term) []constant { return f.keysAt(r, t, maxFlowDepth) }

func (f *flow) keysAt(r *ast.Rule, t *ast.Term, depth int) (all []constant) {
	if depth == 0 {
		return nil
	}
	switch v := t.Value.(type) {
	case ast.Set:
		return f.at(r, t, eachMember, depth)
	case ast.Object:
		v.Foreach(func(key, _ *ast.Term) { all = append(all, f.at(r, key, nil, depth)...) })
	case ast.Var:
		if !f.enter(r, v, "keys", depth) {
			return nil
		}
		for _, from := range f.assigned(r)[v] {
			all = append(all, f.keysAt(r, from, depth-1)...)
		}
	case ast.Ref:
		if !v.HasPrefix(ast.DefaultRootRef) {
			return nil
		}
		for n := 2; n <= len(v); n++ {
			for _, rule := range f.compiler.GetRulesExact(v[:n]) {
				for ; rule != nil && len(rule.Head.Args) == 0; rule = rule.Else {
					all = append(all, f.keysIn(rule, v[n:], depth-1)...)
				}
			}
		}
		f.inData(f.set.data, v[1:], func(value any) {
			object, _ := value.(map[string]any)
			for key := range object {
				all = append(all, constant{value: ast.String(key), from: v.String()})
			}
		})
	}
	return all
}

// keysIn returns those of what a rule defines at a path.
func (f *flow) keysIn(rule *ast.Rule, path ast.Ref, depth int) (all []constant) {
	if rule.Head.RuleKind() == ast.MultiValue {
		if len(path) == 0 {
			return f.at(rule, rule.Head.Key, nil, depth)
		}
		return nil
	}
	found := []*ast.Term{rule.Head.Value}
	for _, key := range path {
		var next []*ast.Term
		for _, t := range found {
			selected(t, key, func(member *ast.Term) { next = append(next, member) })
		}
		found = next
	}
	for _, t := range found {
		all = append(all, f.keysAt(rule, t, depth)...)
	}
	return all
}

// inRef returns the constants that a reference leads to.
func (f *flow) inRef(r *ast.Rule, ref, path ast.Ref, depth int) (all []constant) {
	if !ref.HasPrefix(ast.DefaultRootRef) {
		if head, ok := ref[0].Value.(ast.Var); ok && head != ast.InputRootDocument.Value {
			return f.at(r, ref[0], slices.Concat(ref[1:], path), depth)
		}
		return nil
	}
	whole := slices.Concat(ref, path)
	for n := 2; n <= len(whole); n++ {
		for _, rule := range f.compiler.GetRulesExact(whole[:n]) {
			all = append(all, f.inRule(rule, whole[n:], depth)...)
		}
	}
	if len(all) > 0 {
		return all
	}
	f.inData(f.set.data, whole[1:], func(v any) {
		if value, err := ast.InterfaceToValue(v); err == nil && len(all) < maxFlowValues {
			all = append(all, constant{value: value, from: ref.GroundPrefix().String()})
		}
	})
	return all
}

// inRule returns the constants that a rule defines at a path. It leaves functions out.
func (f *flow) inRule(r *ast.Rule, path ast.Ref, depth int) (all []constant) {
	if len(r.Head.Args) > 0 {
		return nil
	}
	for ; r != nil; r = r.Else {
		switch {
		case r.Head.RuleKind() == ast.MultiValue && len(path) > 0:
			all = append(all, f.at(r, r.Head.Key, path[1:], depth)...)
		case r.Head.RuleKind() == ast.SingleValue:
			all = append(all, f.at(r, r.Head.Value, path, depth)...)
		}
	}
	return all
}

// inData visits the scalars of the data at a path.
func (f *flow) inData(value any, path ast.Ref, visit func(any)) {
	if len(path) == 0 {
		visit(value)
		return
	}
	key, constant := path[0].Value.(ast.String)
	switch v := value.(type) {
	case map[string]any:
		if constant {
			if next, ok := v[string(key)]; ok {
				f.inData(next, path[1:], visit)
			}
			return
		}
		for _, next := range v {
			f.inData(next, path[1:], visit)
		}
	case []any:
		for _, next := range v {
			f.inData(next, path[1:], visit)
		}
	}
}

// assigned returns what the variables of a rule are assigned, in comprehensions, too.
func (f *flow) assigned(r *ast.Rule) map[ast.Var][]*ast.Term {
	if given, ok := f.given[r]; ok {
		return given
	}
	given := map[ast.Var][]*ast.Term{}
	f.given[r] = given
	one := *r
	one.Else = nil
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.Expr:
			if x.IsEquality() && !x.Negated {
				assign(given, x.Operand(0), x.Operand(1))
				assign(given, x.Operand(1), x.Operand(0))
			}
		case *ast.Every:
			if v, ok := x.Value.Value.(ast.Var); ok {
				given[v] = append(given[v], elementOf(x.Domain))
			}
		}
		return false
	}).Walk(&one)
	return given
}

// assign notes what the variables in a term are assigned by an equality.
func assign(given map[ast.Var][]*ast.Term, to, from *ast.Term) {
	switch to := to.Value.(type) {
	case ast.Var:
		given[to] = append(given[to], from)
	case *ast.Array:
		if list, ok := from.Value.(*ast.Array); ok && list.Len() == to.Len() {
			for i := range to.Len() {
				assign(given, to.Elem(i), list.Elem(i))
			}
		}
	}
}

// elementOf returns a term for the members of a collection.
func elementOf(t *ast.Term) *ast.Term {
	if ref, ok := t.Value.(ast.Ref); ok {
		return &ast.Term{Value: ref.Append(ast.VarTerm("$any")), Location: t.Location}
	}
	return &ast.Term{Value: ast.Ref{t, ast.VarTerm("$any")}, Location: t.Location}
}
