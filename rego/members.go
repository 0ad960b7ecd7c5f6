package rego

import (
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/types"

	"github.com/egressd/egressd/policy"
)

// wrongMembers returns a problem for each rule of the sets whose member cannot be one: a literal, or a term
// whose type the compiler knows. [Evaluator.unsound] finds the members that only an evaluation shows.
func (c *compiled) wrongMembers(asked []querySpec) (problems policy.FileError) {
	for _, a := range asked {
		q := c.queries[a.name]
		if q == nil {
			continue
		}
		for _, r := range q.rules {
			if err := c.memberError(r); err != nil {
				problems = append(problems, problemAt(r.Location, wrongMember(r, err)))
			}
		}
	}
	return problems
}

// wrongMember says what is wrong with a member of a rule, and what to write.
func wrongMember(r *ast.Rule, err error) string {
	return fmt.Sprintf("in %s: %s", headOf(r.Head.Ref()), err)
}

func (c *compiled) memberError(r *ast.Rule) error {
	key := r.Head.Key
	if v, ok := key.Value.(ast.Var); ok {
		for _, t := range newFlow(nil, c.compiler).assigned(r)[v] {
			if object, ok := t.Value.(ast.Object); ok {
				key = ast.NewTerm(object)
			}
		}
	}
	if ast.IsConstant(key.Value) {
		_, err := opinionOf(key)
		return err
	}
	if object, ok := key.Value.(ast.Object); ok {
		if err := literalParts(object); err != nil {
			return err
		}
	}
	return memberTypeError(c.typeOf(r, key))
}

// literalParts checks the constant members of an object of which other members are computed.
func literalParts(object ast.Object) error {
	var o opinion
	return object.Iter(func(key, value *ast.Term) error {
		if !ast.IsConstant(key.Value) || !ast.IsConstant(value.Value) {
			return nil
		}
		return o.set(key, value)
	})
}

// typeOf returns the type that a term has in the body of a rule, or nil.
func (c *compiled) typeOf(r *ast.Rule, t *ast.Term) types.Type {
	const name = ast.Var("member_of_the_rule")
	body := append(r.Body.Copy(), ast.Equality.Expr(ast.NewTerm(name), t.Copy()))
	q := c.compiler.QueryCompiler()
	if _, err := q.Compile(body); err != nil {
		return nil
	}
	return q.TypeEnv().GetByValue(name)
}

func memberTypeError(t types.Type) error {
	switch t := t.(type) {
	case nil, *types.Recursive:
		return nil
	case *types.NamedType:
		return memberTypeError(t.Type)
	case types.Any:
		for _, one := range t {
			if err := memberTypeError(one); err != nil {
				return err
			}
		}
		return nil
	case *types.Object:
		return memberPartsError(t)
	}
	return notAMember(types.Sprint(t))
}

// memberPartsError checks the types of the members of an object.
func memberPartsError(t *types.Object) error {
	for _, p := range t.StaticProperties() {
		name, _ := p.Key.(string)
		wants, known := partTypes[name]
		switch {
		case !known:
			return unknownPart(name)
		case !mayBe(p.Value, wants):
			return fmt.Errorf("%q: it wants %s, not %s", name, types.Sprint(wants), types.Sprint(p.Value))
		}
	}
	if t.DynamicProperties() == nil && !slices.Contains(t.Keys(), any("rule")) {
		return errNoRule
	}
	return nil
}

// partTypes are the types of the parts of a member. The map is never written.
var partTypes = map[string]types.Type{
	"rule": types.S, "reason": types.S, "ech": types.S, "tls": types.S, "upgrade": types.S, "inject": types.S,
	"log": types.B, "max_bytes_up": types.N,
}

// mayBe reports whether a value of type t may be of a scalar type.
func mayBe(t, scalar types.Type) bool {
	switch t := t.(type) {
	case nil, *types.Recursive:
		return true
	case *types.NamedType:
		return mayBe(t.Type, scalar)
	case types.Any:
		return len(t) == 0 || slices.ContainsFunc(t, func(one types.Type) bool { return mayBe(one, scalar) })
	}
	return types.Compare(t, scalar) == 0
}
