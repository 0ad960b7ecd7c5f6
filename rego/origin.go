package rego

import (
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// An origin tells which fields of the input a term carries, and whether unchanged.
type origin struct {
	same    inputFields // the term is the field
	derived inputFields // the term was computed from the field
}

func (o origin) or(other origin) origin {
	return origin{o.same | other.same, o.derived | other.derived}
}

// A termIn is a term in a rule.
type termIn struct {
	rule *ast.Rule
	term *ast.Term
}

// origins finds the origins of terms in compiled modules, through variables, rules, and functions and their
// arguments.
type origins struct {
	*flow
	made   map[*ast.Rule]map[ast.Var][][]*ast.Term // the calls that give a variable its value
	called map[string][][]termIn                   // by function and argument, what it is called with
	steps  int                                     // of the present search
}

// maxOriginSteps bounds a search among variables that are equal to each other in many ways.
const maxOriginSteps = 20_000

func newOrigins(f *flow) *origins {
	o := &origins{flow: f, made: map[*ast.Rule]map[ast.Var][][]*ast.Term{}, called: map[string][][]termIn{}}
	f.calls(func(r *ast.Rule, call []*ast.Term) {
		name := functionName(call)
		if o.made[r] == nil {
			o.made[r] = map[ast.Var][][]*ast.Term{}
		}
		arity := o.arity(name)
		if v, ok := call[len(call)-1].Value.(ast.Var); ok && arity >= 0 && len(call) == arity+2 {
			o.made[r][v] = append(o.made[r][v], call)
		}
		if rules := o.rulesOf(call); len(rules) > 0 {
			at := o.called[name]
			for i := range min(arity, len(call)-1) {
				for len(at) <= i {
					at = append(at, nil)
				}
				at[i] = append(at[i], termIn{r, call[i+1]})
			}
			o.called[name] = at
		}
	})
	return o
}

// arity returns the number of arguments of a function, or -1.
func (o *origins) arity(name string) int {
	if b := ast.BuiltinMap[name]; b != nil {
		return len(b.Decl.FuncArgs().Args)
	}
	if rest, ok := strings.CutPrefix(name, "egressd."); ok {
		if n, ok := natives(nil)[rest]; ok {
			return len(n.arguments)
		}
	}
	if ref, err := ast.ParseRef(name); err == nil {
		if rules := o.compiler.GetRulesExact(ref); len(rules) > 0 {
			return len(rules[0].Head.Args)
		}
	}
	return -1
}

// rulesOf returns the rules of the function of the policy that is called.
func (o *origins) rulesOf(call []*ast.Term) []*ast.Rule {
	ref, ok := call[0].Value.(ast.Ref)
	if !ok || !ref.HasPrefix(ast.DefaultRootRef) {
		return nil
	}
	return o.compiler.GetRulesExact(ref)
}

// unchanging are the functions that return a canonical host as it is.
var unchanging = []string{"lower", "trim_space", "egressd.host_canonical"}

// of returns the origin of a term of a rule.
func (o *origins) of(r *ast.Rule, t *ast.Term) origin {
	o.steps = 0
	return o.at(r, t, maxFlowDepth)
}

func (o *origins) at(r *ast.Rule, t *ast.Term, depth int) (from origin) {
	if o.steps++; depth == 0 || o.steps > maxOriginSteps {
		return from
	}
	switch v := t.Value.(type) {
	case ast.Ref:
		return o.inRef(r, v, depth-1)
	case ast.Var:
		for _, t := range o.assigned(r)[v] {
			from = from.or(o.at(r, t, depth-1))
		}
		for _, call := range o.made[r][v] {
			from = from.or(o.result(r, call, depth-1))
		}
		if i := slices.IndexFunc(r.Head.Args, t.Equal); i >= 0 {
			if sites := o.called[r.Ref().String()]; i < len(sites) {
				for _, s := range sites[i] {
					from = from.or(o.at(s.rule, s.term, depth-1))
				}
			}
		}
	case *ast.Array:
		v.Foreach(func(t *ast.Term) { from = from.or(o.computed(r, t, depth-1)) })
	case ast.Call:
		return o.result(r, v, depth-1)
	}
	return from
}

// constants returns what a term can be, and, for a parameter of a function, what the function is called with.
func (o *origins) constants(r *ast.Rule, t *ast.Term) []constant {
	all := o.values(r, t)
	if i := slices.IndexFunc(r.Head.Args, t.Equal); i >= 0 {
		if sites := o.called[r.Ref().String()]; i < len(sites) {
			for _, s := range sites[i] {
				all = append(all, o.values(s.rule, s.term)...)
			}
		}
	}
	return all
}

func (o *origins) computed(r *ast.Rule, t *ast.Term, depth int) origin {
	from := o.at(r, t, depth)
	return origin{derived: from.same | from.derived}
}

// result returns the origin of what a call returns.
func (o *origins) result(r *ast.Rule, call []*ast.Term, depth int) (from origin) {
	name := functionName(call)
	if slices.Contains(unchanging, name) && len(call) > 1 {
		if from = o.at(r, call[1], depth); from.same&^hostFields == 0 {
			return from
		}
		return origin{derived: from.same | from.derived}
	}
	arguments := call[1:min(len(call), 1+max(o.arity(name), 0))]
	rules := o.rulesOf(call)
	if len(rules) == 0 {
		for _, t := range arguments {
			from = from.or(o.computed(r, t, depth))
		}
		return from
	}
	for _, f := range rules {
		from = from.or(o.at(f, f.Head.Value, depth))
	}
	return from
}

func (o *origins) inRef(r *ast.Rule, ref ast.Ref, depth int) (from origin) {
	switch {
	case ref.HasPrefix(ast.InputRootRef):
		return origin{same: fieldsAt(ref[1:])}
	case !ref.HasPrefix(ast.DefaultRootRef):
		if head, ok := ref[0].Value.(ast.Var); ok && depth > 0 {
			for _, t := range o.assigned(r)[head] {
				if whole, ok := t.Value.(ast.Ref); ok {
					from = from.or(o.inRef(r, whole.Concat(ref[1:]), depth-1))
				}
			}
		}
		if from != (origin{}) {
			return from
		}
		return o.computed(r, ref[0], depth)
	}
	for n := 2; n <= len(ref); n++ {
		for _, rule := range o.compiler.GetRulesExact(ref[:n]) {
			for ; rule != nil && len(rule.Head.Args) == 0; rule = rule.Else {
				value := rule.Head.Value
				if rule.Head.RuleKind() == ast.MultiValue {
					value = rule.Head.Key
				}
				from = from.or(o.at(rule, value, depth))
			}
		}
	}
	return from
}
