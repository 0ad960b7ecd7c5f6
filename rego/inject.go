package rego

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/internal/spelling"
	"github.com/egressd/egressd/policy"
)

// unknownInjections refuses members with a literal "inject" that names no rule with a credential.
func (set *sourceSet) unknownInjections(known []policy.Injection) (problems policy.FileError) {
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		if strings.HasPrefix(name, libraryPrefix) {
			continue
		}
		ast.WalkTerms(set.modules[name], func(t *ast.Term) bool {
			if id, at := injectionOf(t); at != nil && injectionNamed(known, id) == nil {
				problems = append(problems, problemAt(at, unknownInjection(known, id)))
			}
			return false
		})
	}
	return problems
}

// injectionOf returns the literal id in a member's "inject" and its location. The location is nil if there
// is none.
func injectionOf(t *ast.Term) (id string, at *ast.Location) {
	member, ok := t.Value.(ast.Object)
	if !ok || member.Get(ast.InternedTerm("rule")) == nil {
		return "", nil
	}
	inject := member.Get(ast.InternedTerm("inject"))
	if inject == nil {
		return "", nil
	}
	text, ok := inject.Value.(ast.String)
	if !ok {
		return "", nil
	}
	return string(text), inject.Location
}

func injectionNamed(known []policy.Injection, id string) *policy.Injection {
	i := slices.IndexFunc(known, func(in policy.Injection) bool { return in.Rule == id })
	if i < 0 {
		return nil
	}
	return &known[i]
}

func unknownInjection(known []policy.Injection, id string) string {
	said := fmt.Sprintf("no rule of the policy file with the id %q has inject", clip(id, maxRuleBytes))
	for _, in := range known {
		if spelling.Distance(in.Rule, id) <= 2 {
			return said + fmt.Sprintf("; did you mean %q?", in.Rule)
		}
	}
	if len(known) == 0 {
		return said + "; none has, write one under allow"
	}
	return said + fmt.Sprintf("; one that has is %q", known[0].Rule)
}

// injects returns an error if the named credential does not exist or belongs to another host. The
// component that adds the credential checks this again.
func (e *Evaluator) injects(id string, r *policy.Request) error {
	if e.injections == nil || id == "" || id == someCredential {
		return nil
	}
	in := injectionNamed(e.injections, id)
	switch {
	case in == nil:
		return fmt.Errorf("%s", unknownInjection(e.injections, id))
	case r.DNS == nil && !inClear(r) && !in.Covers(r.Destination):
		return fmt.Errorf("the credential of rule %s is for %s, not for %s", id, in.Pattern, r.Destination)
	}
	return nil
}
