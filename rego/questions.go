package rego

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// A setName is a set that decides, and what its members mean.
type setName struct {
	name    string
	verdict policy.Verdict
}

var (
	decidingSets = []setName{{"deny", policy.Deny}, {"ask", policy.Ask}, {"allow", policy.Allow}}
	ceilingSets  = []setName{{ceilingName, policy.Allow}} // what is in it may be opened
)

const ceilingName = "ceiling"

// An asking is one question to the files of a policy: for some sets of a package.
type asking struct {
	name string // the package, or ceilingName
	pkg  ast.Ref
	sets []setName
}

// questions are those that the files may answer, the main one first.
func (o *Options) questions() ([]asking, error) {
	main, err := packageRef(o.Package)
	if err != nil {
		return nil, err
	}
	all := []asking{{o.Package, main, decidingSets}}
	if o.Package != "egress" {
		return all, nil
	}
	all = append(all, asking{ceilingName, main, ceilingSets})
	for _, name := range o.Sandboxes {
		name = "egress." + name
		pkg, err := packageRef(name)
		if err != nil {
			return nil, err
		}
		all = append(all, asking{name, pkg, decidingSets})
	}
	return all, nil
}

// A question is compiled: the sets that it is for.
type question struct {
	sets  []entry
	query ast.Body    // all sets at once
	rules []*ast.Rule // of the sets
}

// findSets looks which of the sets there are, and compiles the queries for them.
func (c *compiled) findSets(asked []asking) error {
	for _, a := range asked {
		q, err := c.find(a)
		if err != nil {
			return err
		}
		if q != nil {
			c.questions[a.name] = q
		}
	}
	if len(c.questions) == 0 {
		return fmt.Errorf("no file has a rule for allow, ask or deny in package %s; write: allow contains {\"rule\": \"NAME\"} if …", asked[0].name)
	}
	return nil
}

// find returns nil where there is none of the sets.
func (c *compiled) find(a asking) (_ *question, err error) {
	q := &question{}
	var all ast.Body
	for _, s := range a.sets {
		ref := a.pkg.Append(ast.StringTerm(s.name))
		found := c.compiler.GetRulesForVirtualDocument(ref)
		if len(found) == 0 {
			continue
		}
		if problems := notSets(s.name, found); len(problems) > 0 {
			return nil, problems
		}
		members, err := c.compileQuery(ast.NewBody(ast.NewExpr(ast.NewTerm(ref.Append(ast.VarTerm(member))))))
		if err != nil {
			return nil, err
		}
		q.rules = append(q.rules, found...)
		q.sets = append(q.sets, entry{s.verdict, ast.Var(s.name), members})
		all = append(all, ast.Equality.Expr(ast.VarTerm(s.name), ast.NewTerm(ref)))
	}
	if len(all) == 0 {
		return nil, nil
	}
	q.query, err = c.compileQuery(ast.NewBody(all...))
	return q, err
}

const member = "member"

func (c *compiled) compileQuery(body ast.Body) (ast.Body, error) {
	query, err := c.compiler.QueryCompiler().Compile(body)
	if err != nil {
		return nil, fmt.Errorf("compiling the question to the policy: %w", err)
	}
	return query, nil
}

// share gives e its own reads and cache, and makes the evaluators of the further
// questions, which have theirs and share everything else.
func (e *Evaluator) share(cached int) {
	others := map[string]*Evaluator{}
	for name := range e.whole.questions {
		one := *e
		one.asks, one.reads, one.cache = name, e.whole.reads(name), newVerdictCache(cachedBy(cached))
		if e.mayInject {
			one.reads |= readsHost | readsPort // whether a credential may go there is part of the decision
		}
		switch name {
		case e.asks:
			*e = one
			continue
		case ceilingName:
			one.bare = true
		default:
			one.pkg, one.layer = name, policy.PerSandbox
		}
		others[name] = &one
	}
	e.others = others
}

// cachedBy is how many verdicts are kept where options say so many.
func cachedBy(cached int) int { return cmp.Or(cached, defaultCached) }

// Ceiling returns what the set "ceiling" of package egress says, or nil where no file
// has one: allow for what its members cover, inspect where that depends on the
// request, and abstain for the rest. It shares everything with e but its cache.
func (e *Evaluator) Ceiling() *Evaluator { return e.others[ceilingName] }

// Sandbox returns what the package egress.NAME of one of [Options].Sandboxes says, or
// nil where no file has one. Its layer is the sandbox's.
func (e *Evaluator) Sandbox(name string) *Evaluator { return e.others["egress."+name] }

// Allows reports whether there is a set "allow", be it empty.
func (e *Evaluator) Allows() bool {
	q := e.whole.questions[e.asks]
	return q != nil && slices.ContainsFunc(q.sets, func(s entry) bool { return s.verdict == policy.Allow })
}

// Decides reports whether there is any set that is asked for, beside those of
// [Evaluator.Ceiling] and [Evaluator.Sandbox].
func (e *Evaluator) Decides() bool { return e.whole.questions[e.asks] != nil }

// Sandboxes returns the names NAME of the packages egress.NAME in which something
// decides, sorted, and whether something does in package egress. What is no Rego is
// left to [Load].
func Sandboxes(sources []Source) (names []string, egress bool) {
	set := sourceSet{modules: map[string]*ast.Module{}, data: map[string]any{}}
	for _, s := range sources {
		set.add(s)
	}
	for _, m := range set.modules {
		if !slices.ContainsFunc(m.Rules, func(r *ast.Rule) bool { return decides([]string{string(headOf(r.Head.Ref()))}) }) {
			continue
		}
		name, below := sandboxOf(m.Package.Path)
		switch {
		case m.Package.Path.Equal(ast.MustParseRef("data.egress")):
			egress = true
		case below && len(m.Package.Path) == 3:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), egress
}

// sandboxOf returns NAME of a package egress.NAME.
func sandboxOf(pkg ast.Ref) (name string, ok bool) {
	path := words(pkg[1:])
	if len(path) < 2 || path[0] != "egress" {
		return "", false
	}
	return strings.Join(path[1:], "."), true
}
