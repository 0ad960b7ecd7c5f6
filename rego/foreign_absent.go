package rego

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// What the input does not have is refused where the types do not show it: in the
// hands of a function, and as a path of object.get. It would be taken for absent,
// and "not" would hold.

// absent refuses names of the input that it does not have here, wherever they stand.
func (s *shape) absent(c *ast.Compiler) (problems policy.FileError, err error) {
	text, err := foreignSchemas.ReadFile(s.schema)
	if err != nil {
		return nil, fmt.Errorf("reading the schema of the input: %w", err)
	}
	var input schemaPart
	if err := json.Unmarshal(text, &input); err != nil {
		return nil, fmt.Errorf("reading the schema of the input: %w", err)
	}
	for _, m := range c.Modules {
		ast.WalkTerms(m, func(t *ast.Term) bool {
			if name, ok := t.Value.(ast.String); ok && slices.Contains(s.lacks, string(name)) {
				problems = append(problems, problemAt(t.Location, fmt.Sprintf("policies do not see %s; take it out of the policy", name)))
			}
			return false
		})
		given := givenFrom(ast.InputRootRef, m)
		for _, call := range callsIn(m) {
			problems = append(problems, input.absentIn(call, given)...)
		}
	}
	slices.SortFunc(problems, compareProblems)
	return slices.Compact(problems), nil
}

// absentIn judges object.get of a part of the input, with a constant key or path.
func (p *schemaPart) absentIn(call []*ast.Term, given map[ast.Var]ast.Ref) policy.FileError {
	operator, ok := call[0].Value.(ast.Ref)
	if !ok || len(call) < 4 || strings.TrimPrefix(operator.String(), boundedPrefix) != "object.get" {
		return nil
	}
	from, ok := call[1].Value.(ast.Ref)
	if v, isVar := call[1].Value.(ast.Var); isVar {
		from, ok = given[v]
	}
	if !ok || !from.HasPrefix(ast.InputRootRef) || !from.IsGround() {
		return nil
	}
	path := append(words(from[1:]), pathIn(call[2])...)
	if p.holds(path) {
		return nil
	}
	return policy.FileError{problemAt(call[2].Location, fmt.Sprintf("policies do not see input.%s; take it out of the policy", strings.Join(path, ".")))}
}

// pathIn returns the constant text that a key, or a path of keys, begins with.
func pathIn(t *ast.Term) []string {
	path, ok := t.Value.(*ast.Array)
	if !ok {
		return words(ast.Ref{t})
	}
	var terms ast.Ref
	path.Foreach(func(key *ast.Term) { terms = append(terms, key) })
	return words(terms)
}

// A schemaPart is an object of a schema, or anything else where it has no properties.
type schemaPart struct {
	Properties map[string]*schemaPart `json:"properties"`
}

// holds reports whether the input may have something at a path.
func (p *schemaPart) holds(path []string) bool {
	for _, key := range path {
		if p.Properties == nil {
			return true // below it could be anything
		}
		next, there := p.Properties[key]
		if !there {
			return false
		}
		p = next
	}
	return true
}
