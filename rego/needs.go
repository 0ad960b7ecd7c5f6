package rego

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/policy"
)

// ahead decides while part of the input is unknown: each set is evaluated as far
// as it goes, and what is left of a rule says on what it depends. The copy of
// the policy is the caller's alone.
func (e *Evaluator) ahead(ctx context.Context, c *compiled, r *policy.Request, unknown fields, cancel topdown.Cancel) (policy.Decision, error) {
	var found opinions
	if err := e.aheadAt(ctx, c, r, r.Stage(), unknown, cancel, &found); err != nil {
		return policy.Decision{}, err
	}
	if e.reads&readsStage != 0 && r.HTTP == nil && r.DNS == nil {
		var later opinions // at the stage that is to come
		if err := e.aheadAt(ctx, c, r, policy.StageHTTP, unknown, cancel, &later); err != nil {
			return policy.Decision{}, err
		}
		found.addLater(&later)
	}
	if e.reads&readsUsage != 0 && r.HTTP == nil && r.DNS == nil {
		if err := e.aheadOfUsage(ctx, c, r, unknown, cancel, &found); err != nil {
			return policy.Decision{}, err
		}
	}
	if r.DNS != nil {
		return e.resolvable(r, &found)
	}
	return e.decide(r, &found)
}

// addLater adds what will be said at the stage of the request. What depends on
// nothing there, and is not said already, depends on whether there is a request. An
// allow that is not said there any more allows no request: in a tunnel that nobody
// looks into it would allow them all.
func (os *opinions) addLater(later *opinions) {
	if _, stays := certain(later.allow); !stays {
		for i := range os.allow {
			os.allow[i].needs |= policy.NeedsMethod
		}
	}
	os.deny = withLater(os.deny, later.deny)
	os.ask = withLater(os.ask, later.ask)
	os.allow = withLater(os.allow, later.allow)
}

func withLater(now, later []opinion) []opinion {
	for _, o := range later {
		if o.needs == 0 {
			if slices.Contains(now, o) {
				continue
			}
			o.needs, o.words = policy.NeedsMethod, "rule "+o.rule+" holds"
		}
		now = append(now, o)
	}
	return now
}

// aheadAt adds to found what is left of each set at a stage.
func (e *Evaluator) aheadAt(ctx context.Context, c *compiled, r *policy.Request, stage policy.Stage, unknown fields, cancel topdown.Cancel, found *opinions) error {
	for _, s := range c.questions[e.asks].sets {
		in := inputAt(r, stage, e.reads&^unknown).Copy() // some of its terms are shared by all inputs
		q := e.question(c, s.members.Copy(), in, r, cancel).WithUnknowns(unknownTerms(unknown)).WithPartialNamespace(partialNamespace)
		left, support, err := q.PartialRun(ctx)
		if err != nil {
			return fmt.Errorf("looking ahead in %s: %w", s.name, err)
		}
		extra := fieldsInModules(support)
		if leftAlone(left, support) {
			extra |= e.reads
		}
		for _, body := range left {
			o, reads, err := prospect(body, e.pkg, extra)
			if err != nil {
				return fmt.Errorf("looking ahead in %s: %w", s.name, err)
			}
			if later := s.verdict != policy.Allow && o.needs == 0 && reads&unknown != 0; later {
				continue // it may restrict what is known later, and nothing now
			}
			found.add(s.verdict, o)
		}
	}
	return nil
}

// resolvable decides whether a name may be resolved: where it is allowed in some
// way, and not denied in every way.
func (e *Evaluator) resolvable(r *policy.Request, os *opinions) (policy.Decision, error) {
	depends := func(o opinion) bool { return o.needs != 0 }
	os.deny, os.ask = without(os.deny, depends), without(os.ask, depends)
	for i := range os.allow {
		os.allow[i].needs = 0
	}
	return e.decide(r, os)
}

func without(all []opinion, drop func(opinion) bool) (kept []opinion) {
	for _, o := range all {
		if !drop(o) {
			kept = append(kept, o)
		}
	}
	return kept
}

// unknownTerms names what is unknown: a whole part where all of it is.
func unknownTerms(unknown fields) (terms []*ast.Term) {
	add := func(path ...string) {
		ref := ast.InputRootRef
		for _, key := range path {
			ref = ref.Append(ast.StringTerm(key))
		}
		terms = append(terms, ast.NewTerm(ref))
	}
	for _, part := range [...]struct {
		fields fields
		path   []string
	}{
		{readsHTTP, []string{"http"}},
		{readsTLS, []string{"tls"}},
		{readsProcess, []string{"process"}},
		{readsUsage, []string{"usage"}},
		{readsVia, []string{"via"}},
		{readsPort, []string{"destination", "port"}},
		{readsAddresses, []string{"destination", "addresses"}},
		{readsAddressClass, []string{"destination", "address_class"}},
	} {
		if unknown&part.fields != 0 {
			add(part.path...)
		}
	}
	return terms
}

// prospect reads what is left of one member of a set.
func prospect(body ast.Body, pkg string, extra fields) (o opinion, reads fields, err error) {
	var conditions []*ast.Expr
	o.maxBytesUp = someBudget // unless it is seen that the member has none
	for _, expr := range body {
		value, isMember := memberOf(expr)
		switch {
		case !isMember:
			conditions = append(conditions, expr)
		case ast.IsConstant(value.Value):
			if o, err = opinionOf(value); err != nil {
				return o, 0, err
			}
		default:
			if reads |= fieldsIn(value); usesSupport(expr) {
				reads |= extra
			}
			o.rule = literalRule(value)
			o.inject, o.maxBytesUp = laterOptions(value)
		}
	}
	for _, expr := range conditions {
		reads |= fieldsIn(expr)
		if usesSupport(expr) {
			reads |= extra
		}
	}
	if o.rule == "" {
		o.rule = pkg
	}
	o.needs = needsFor(reads)
	if o.needs != 0 {
		o.words = wordsFor(conditions, o.rule)
	}
	return o, reads, nil
}

// memberOf returns the value that an expression gives the member.
func memberOf(expr *ast.Expr) (*ast.Term, bool) {
	if !expr.IsEquality() || expr.Negated {
		return nil, false
	}
	a, b := expr.Operand(0), expr.Operand(1)
	switch {
	case isMember(a):
		return b, true
	case isMember(b):
		return a, true
	}
	return nil, false
}

func isMember(t *ast.Term) bool {
	v, ok := t.Value.(ast.Var)
	return ok && v == member
}

// literalRule returns the rule of a member whose other parts depend on the
// request, such as a reason that quotes it.
func literalRule(t *ast.Term) string {
	members, ok := t.Value.(ast.Object)
	if !ok {
		return ""
	}
	rule := members.Get(ast.InternedTerm("rule"))
	if rule == nil {
		return ""
	}
	name, err := ruleName(rule)
	if err != nil {
		return ""
	}
	return name
}

// Placeholders for the credential and the budget of a member with unknown parts. The first
// is no id, and the second bounds nothing.
const (
	someCredential = " "
	someBudget     = math.MaxInt64
)

// laterOptions returns something for each option of a member that has to be known
// before the request passes. A member whose keys are not seen may have a budget.
func laterOptions(t *ast.Term) (inject string, maxBytesUp int64) {
	members, ok := t.Value.(ast.Object)
	if !ok || slices.ContainsFunc(members.Keys(), func(key *ast.Term) bool { return !ast.IsConstant(key.Value) }) {
		return "", someBudget
	}
	if members.Get(ast.InternedTerm("inject")) != nil {
		inject = someCredential
	}
	if members.Get(ast.InternedTerm("max_bytes_up")) != nil {
		maxBytesUp = someBudget
	}
	return inject, maxBytesUp
}

// partialNamespace is the package of rules that looking ahead makes. No module and
// no data of a policy may have that name.
const partialNamespace = "system"

// usesSupport reports whether an expression leads to rules that looking ahead
// made.
func usesSupport(expr *ast.Expr) (uses bool) {
	ast.WalkRefs(expr, func(ref ast.Ref) bool {
		uses = uses || ref.HasPrefix(ast.DefaultRootRef)
		return false
	})
	return uses
}

// leftAlone reports whether something leads to rules as they were written, which
// looking ahead did not go into: those with an else, or a document as a whole.
func leftAlone(left []ast.Body, support []*ast.Module) (alone bool) {
	made := ast.DefaultRootRef.Append(ast.StringTerm(partialNamespace))
	visit := func(ref ast.Ref) bool {
		alone = alone || ref.HasPrefix(ast.DefaultRootRef) && !ref.HasPrefix(made)
		return false
	}
	for _, body := range left {
		ast.WalkRefs(body, visit)
	}
	for _, m := range support {
		for _, r := range m.Rules {
			ast.WalkRefs(r, visit)
		}
	}
	return alone
}

func fieldsInModules(modules []*ast.Module) (reads fields) {
	for _, m := range modules {
		reads |= fieldsIn(m)
	}
	return reads
}

// needsFor says which parts of a request some fields are.
func needsFor(reads fields) (n policy.Needs) {
	if reads&readsMethod != 0 {
		n |= policy.NeedsMethod
	}
	if reads&(readsPath|readsQuery) != 0 {
		n |= policy.NeedsPath
	}
	if reads&(readsHeaders|readsBodySize) != 0 {
		n |= policy.NeedsHeaders
	}
	return n
}
