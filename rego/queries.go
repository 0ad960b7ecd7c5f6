package rego

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// A setName is the name of a deciding set and the verdict of its members.
type setName struct {
	name    string
	verdict policy.Verdict
}

var (
	decidingSets = []setName{{"deny", policy.Deny}, {"ask", policy.Ask}, {"allow", policy.Allow}}
	ceilingSets  = []setName{{ceilingName, policy.Allow}} // members may be opened
)

const ceilingName = "ceiling"

// A querySpec is a query for some sets of a package.
type querySpec struct {
	name string // the package, or ceilingName
	pkg  ast.Ref
	sets []setName
}

// queries returns the queries to the files, the main one first.
func (o *Options) queries() ([]querySpec, error) {
	main, err := packageRef(o.Package)
	if err != nil {
		return nil, err
	}
	all := []querySpec{{o.Package, main, decidingSets}}
	if o.Package != "egress" {
		return all, nil
	}
	all = append(all, querySpec{ceilingName, main, ceilingSets})
	for _, name := range o.Sandboxes {
		name = "egress." + name
		pkg, err := packageRef(name)
		if err != nil {
			return nil, err
		}
		all = append(all, querySpec{name, pkg, decidingSets})
	}
	return all, nil
}

// A compiledQuery is a query for the sets that exist.
type compiledQuery struct {
	sets  []decidingSet
	query ast.Body    // all sets at once
	rules []*ast.Rule // of the sets
}

// findSets finds the existing sets and compiles the queries for them.
func (c *compiled) findSets(asked []querySpec) error {
	for _, a := range asked {
		q, err := c.find(a)
		if err != nil {
			return err
		}
		if q != nil {
			c.queries[a.name] = q
		}
	}
	if len(c.queries) == 0 {
		if problems := c.unread(asked[0]); len(problems) > 0 {
			return problems
		}
		return fmt.Errorf("no file has a rule for allow, ask or deny in package %s; write: allow contains {\"rule\": \"NAME\"} if …", asked[0].name)
	}
	return nil
}

// find returns nil if none of the sets exists.
func (c *compiled) find(a querySpec) (_ *compiledQuery, err error) {
	q := &compiledQuery{}
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
		q.sets = append(q.sets, decidingSet{s.verdict, ast.Var(s.name), members})
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

// split creates the evaluators of the other queries. Each has its own fields and cache and shares
// everything else.
func (e *Evaluator) split(cached int) {
	others := map[string]*Evaluator{}
	for name := range e.whole.queries {
		one := *e
		one.query, one.reads, one.cache, one.rests = name, e.whole.reads(name), newVerdictCache(cachedBy(cached)), newRests()
		if e.mayInject {
			one.reads |= readsHost | readsPort // the decision depends on whether the credential may go there
		}
		switch name {
		case e.query:
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

// cachedBy returns the size of the cache for an option.
func cachedBy(cached int) int { return cmp.Or(cached, defaultCached) }

// Ceiling returns an evaluator of the set "ceiling" of package egress, or nil if there is none. It allows
// what the members cover, inspects if that depends on the request, and otherwise abstains. It shares
// everything with e except its cache.
func (e *Evaluator) Ceiling() *Evaluator { return e.others[ceilingName] }

// Sandbox returns an evaluator of the package egress.NAME for one of [Options].Sandboxes, or nil if there
// is none. Its layer is that of the sandbox.
func (e *Evaluator) Sandbox(name string) *Evaluator { return e.others["egress."+name] }

// Allows reports whether the set "allow" is defined.
func (e *Evaluator) Allows() bool {
	q := e.whole.queries[e.query]
	return q != nil && slices.ContainsFunc(q.sets, func(s decidingSet) bool { return s.verdict == policy.Allow })
}

// Opens reports whether a set is defined by which something may pass: all but "deny" alone.
func (e *Evaluator) Opens() bool {
	q := e.whole.queries[e.query]
	return q != nil && slices.ContainsFunc(q.sets, func(s decidingSet) bool { return s.verdict != policy.Deny })
}

// Decides reports whether a deciding set is defined. The sets of [Evaluator.Ceiling] and
// [Evaluator.Sandbox] do not count.
func (e *Evaluator) Decides() bool { return e.whole.queries[e.query] != nil }

// Sandboxes returns the sorted names of the packages egress.NAME with a deciding set, and whether package
// egress has one. Syntax errors are left to [Load].
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

func sandboxOf(pkg ast.Ref) (name string, ok bool) {
	path := words(pkg[1:])
	if len(path) < 2 || path[0] != "egress" {
		return "", false
	}
	return strings.Join(path[1:], "."), true
}
