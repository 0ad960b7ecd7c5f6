package rego

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/egressd/egressd/policy"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// partial decides while part of the input is unknown. It partially evaluates each set; the remaining
// conditions of a rule tell which unknown parts it depends on. The caller must own the copy c of the
// policy.
func (e *Evaluator) partial(ctx context.Context, c *compiled, r *policy.Request, unknown inputFields, cancel topdown.Cancel) (judged, error) {
	var found opinions
	if err := e.partialAt(ctx, c, r, r.Stage(), unknown, cancel, &found); err != nil {
		return judged{}, err
	}
	if e.reads&readsStage != 0 && r.HTTP == nil && r.DNS == nil {
		var later opinions // opinions at the later HTTP stage
		if err := e.partialAt(ctx, c, r, policy.StageHTTP, unknown, cancel, &later); err != nil {
			return judged{}, err
		}
		found.addLater(&later)
	}
	if e.reads&(readsUsage|readsTime) != 0 && r.HTTP == nil && r.DNS == nil {
		if err := e.partialChanging(ctx, c, r, unknown, cancel, &found); err != nil {
			return judged{}, err
		}
	}
	if len(found.allow) == 0 {
		found.allow = found.mayAsk
	}
	if r.DNS != nil {
		d, err := e.resolvable(r, &found)
		return judged{Decision: d}, err
	}
	d, err := e.decide(r, &found)
	return judged{d, waysOf(found.allow)}, err
}

// addLater adds the opinions that hold at the HTTP stage. An opinion that holds only then depends on the
// HTTP request. An allow that no longer holds then allows no request, so it must not open a tunnel without
// inspection.
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

// partialAt adds the remaining members of each set at a stage.
func (e *Evaluator) partialAt(ctx context.Context, c *compiled, r *policy.Request, stage policy.Stage, unknown inputFields, cancel topdown.Cancel, found *opinions) error {
	for _, s := range c.queries[e.query].sets {
		unknown := unknown
		if r.DNS != nil && s.verdict != policy.Allow {
			unknown &^= readsVia // no later stage would apply a restriction of questions
		}
		in := inputAt(r, stage, e.reads&^unknown).Copy() // inputs share terms, which OPA would modify
		q := e.newQuery(c, s.members.Copy(), in, r, cancel).WithUnknowns(unknownTerms(unknown)).WithPartialNamespace(partialNamespace)
		left, support, err := q.PartialRun(ctx)
		if err != nil {
			return fmt.Errorf("looking ahead in %s: %w", s.name, err)
		}
		extra := fieldsInModules(support)
		if leftAlone(left, support) {
			extra |= e.reads
		}
		for _, body := range left {
			o, err := residual(body, e.pkg, extra, unknown)
			if err != nil {
				return fmt.Errorf("looking ahead in %s: %w", s.name, err)
			}
			switch {
			case !o.pending || s.verdict == policy.Allow:
				found.add(s.verdict, o)
			case s.verdict == policy.Ask && r.DNS == nil && unknown&readsResolved != 0: // nobody is asked about a question
				found.mayAsk = append(found.mayAsk, opinion{rule: o.rule, reason: "rule " + o.rule + " may ask a person about this", pending: true})
			}
		}
	}
	return nil
}

// resolvable decides about resolving a name: it must be allowed in some way and not denied in every way.
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

// unknownTerms names the unknown parts. Parts with an unknown field are unknown as a whole.
func unknownTerms(unknown inputFields) (terms []*ast.Term) {
	add := func(path ...string) {
		ref := ast.InputRootRef
		for _, key := range path {
			ref = ref.Append(ast.StringTerm(key))
		}
		terms = append(terms, ast.NewTerm(ref))
	}
	if unknown&readsHTTP == readsBody {
		unknown &^= readsHTTP
		add("http", "body")
	}
	for _, part := range [...]struct {
		fields inputFields
		path   []string
	}{
		{readsHTTP, []string{"http"}},
		{readsTLS, []string{"tls"}},
		{readsProcess, []string{"process"}},
		{readsUsage, []string{"usage"}},
		{readsTime, []string{"time"}},
		{readsVia, []string{"via"}},
		{readsPort, []string{"destination", "port"}},
		{readsAddresses, []string{"destination", "addresses"}},
		{readsAddressClass, []string{"destination", "address_class"}},
	} {
		if unknown&part.fields != 0 {
			add(part.path...)
		}
	}
	if unknown&readsTime != 0 {
		terms = append(terms, clock)
	}
	return terms
}

// clock is the built-in that tells the time. A call of an unknown built-in is not evaluated.
var clock = ast.NewTerm(ast.MustParseRef(boundedPrefix + "time.now_ns"))

// residual parses the result of partial evaluation for one member of a set.
func residual(body ast.Body, pkg string, extra, unknown inputFields) (o opinion, err error) {
	var conditions []*ast.Expr
	var reads inputFields
	o.maxBytesUp = someBudget // the member may have a budget until its keys are known
	for _, expr := range body {
		value, isMember := memberOf(expr)
		switch {
		case !isMember:
			conditions = append(conditions, expr)
		case ast.IsConstant(value.Value):
			if o, err = opinionOf(value); err != nil {
				return o, err
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
	o.needs = needsFor(reads & unknown)
	o.pending = o.needs == 0 && reads&unknown != 0
	if o.needs != 0 {
		o.words, o.way = wordsFor(conditions, o.rule), wayOf(conditions)
	}
	return o, nil
}

// memberOf returns the value that an expression assigns to the member.
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

// literalRule returns the literal rule of a member whose other parts depend on the request, such as a
// reason that quotes it.
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

// Placeholders for an unknown credential and budget. The first is not a valid id, the second sets no
// limit.
const (
	someCredential = " "
	someBudget     = math.MaxInt64
)

// laterOptions returns placeholders for options that must be known before the request passes. A member
// with unknown keys may have a budget.
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

// partialNamespace is the package of rules generated by partial evaluation. No policy may use this name.
const partialNamespace = "system"

// usesSupport reports whether an expression refers to rules generated by partial evaluation.
func usesSupport(expr *ast.Expr) (uses bool) {
	ast.WalkRefs(expr, func(ref ast.Ref) bool {
		uses = uses || ref.HasPrefix(ast.DefaultRootRef)
		return false
	})
	return uses
}

// leftAlone reports whether something refers to original rules, which partial evaluation did not enter:
// rules with else, and whole documents.
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

func fieldsInModules(modules []*ast.Module) (reads inputFields) {
	for _, m := range modules {
		reads |= fieldsIn(m)
	}
	return reads
}

// needsFor converts fields to parts of a request.
func needsFor(reads inputFields) (n policy.Needs) {
	if reads&readsMethod != 0 {
		n |= policy.NeedsMethod
	}
	if reads&(readsPath|readsQuery) != 0 {
		n |= policy.NeedsPath
	}
	if reads&(readsHeaders|readsBodySize) != 0 {
		n |= policy.NeedsHeaders
	}
	if reads&readsBody != 0 {
		n |= policy.NeedsBody
	}
	return n
}

// partialChanging adds the opinions that may restrict later requests in a tunnel, after the sandbox has used
// more or at another time. A tunnel without inspection would bypass them.
func (e *Evaluator) partialChanging(ctx context.Context, c *compiled, r *policy.Request, unknown inputFields, cancel topdown.Cancel, found *opinions) error {
	if unknown&readsHTTP == 0 {
		return nil
	}
	var later opinions
	if err := e.partialAt(ctx, c, r, policy.StageHTTP, unknown|e.reads&(readsUsage|readsTime), cancel, &later); err != nil {
		return err
	}
	sure := func(o opinion) bool { return o.needs == 0 }
	found.deny = append(found.deny, without(later.deny, sure)...)
	found.ask = append(found.ask, without(later.ask, sure)...)
	for _, o := range without(later.allow, sure) {
		if o.maxBytesUp != 0 {
			found.allow = append(found.allow, o)
		}
	}
	return nil
}
