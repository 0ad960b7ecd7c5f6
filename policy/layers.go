package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// Layers are what a policy is made of beside its file and the further opinions of
// the organisation. Across layers the strictest opinion counts.
type Layers struct {
	// Organisation is the file of [ParseOrganisation]; nil where there is none. With
	// it, the file that is compiled is the user's alone.
	Organisation *File

	// User are further opinions below the organisation.
	User []Evaluator

	// Ceilings are what the layers below the organisation may open at most, beside
	// the lists of the files: each is asked what it allows.
	Ceilings []Ceiling

	// Narrowing are further opinions on one sandbox each, by its name. What they
	// allow opens nothing.
	Narrowing map[string][]Narrowing

	// Projects are the working trees of sandboxes, by the name of the sandbox.
	Projects map[string]WorkingTree
}

// A Ceiling is an evaluator that is asked what may be opened: allow, or inspect
// where it depends on the request. Everything else, errors too, keeps it shut.
type Ceiling struct {
	Evaluator Evaluator
	Layer     Layer // who wrote it
}

// A Narrowing is an opinion on one sandbox.
type Narrowing struct {
	Evaluator Evaluator

	// Exhaustive says that the sandbox reaches nothing but what Evaluator allows.
	Exhaustive bool
}

// A WorkingTree is the project layer of one sandbox.
type WorkingTree struct {
	File       *File // of [ParseProject]
	Evaluators []Evaluator

	// Opens is whether what the project allows counts. Where it does not, only what
	// it denies and asks about does.
	Opens bool
}

// hear combines what evaluators say about a request. looks says that one of them
// has to see what is in a tunnel.
func hear(ctx context.Context, r *Request, evaluators []Evaluator) (d Decision, looks bool) {
	d = Decision{Verdict: Abstain}
	for _, e := range evaluators {
		opinion := heard(ctx, e, r)
		looks = looks || opinion.Verdict == Inspect
		d = combine(d, opinion)
	}
	return d, looks
}

// heard turns an error, and a verdict that does not exist, into a denial.
func heard(ctx context.Context, e Evaluator, r *Request) Decision {
	d, err := e.Evaluate(ctx, r)
	if err != nil || d.Verdict > Abstain {
		return Decision{Class: PolicyError, Rule: "policy-error", Layer: Builtin, Reason: "the policy could not be evaluated"}
	}
	return d
}

// hearBelow combines what the layers below the organisation say, the default among
// them, with what the organisation said. Where the organisation itself allows, no
// ceiling is asked: a ceiling is about what others open.
func (p *Policy) hearBelow(ctx context.Context, r *Request, above Decision) (d Decision, looks bool) {
	below, looks := hear(ctx, r, p.below)
	if above.Verdict != Abstain {
		return combine(above, below), looks
	}
	if below.Verdict == Abstain {
		below = combine(p.byDefault(r), below)
	}
	if below.Verdict != Deny {
		for _, c := range p.ceilings {
			under := c.hold(ctx, r, below)
			looks = looks || under.Verdict == Inspect
			below = under
		}
	}
	return combine(above, below), looks
}

// hold returns d where the ceiling has room for it, and a denial where not.
func (c *Ceiling) hold(ctx context.Context, r *Request, d Decision) Decision {
	room := heard(ctx, c.Evaluator, r.unapproved()) // an answer opens nothing that is not let be opened
	switch {
	case room.Verdict == Allow, room.Verdict == Inspect:
		room.AnyProtocol, room.ECH, room.Inject = d.AnyProtocol, d.ECH, "" // it is about requests alone
		return combine(d, room)
	case room.Class == PolicyError:
		return combine(d, room)
	}
	return combine(d, Decision{
		Class: RuleDeny, Rule: "ceiling", Layer: c.Layer, AllowedIf: room.AllowedIf,
		Reason: fmt.Sprintf("%s is outside of what the ceiling lets be opened", whatTo(r)),
	})
}

// whatTo names a destination, or that it is only this request to it.
func whatTo(r *Request) string {
	if r.HTTP != nil {
		return "this request to " + whereTo(r)
	}
	return whereTo(r)
}

// narrowLayer is what further opinions say about the sandboxes that they are for.
type narrowLayer map[string][]Narrowing

// Evaluate asks about nobody's request nothing.
func (l narrowLayer) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	d := Decision{Verdict: Abstain}
	for _, n := range l[r.Sandbox.Name] {
		d = combine(d, n.narrow(ctx, r))
	}
	return d, nil
}

// ReadsUsage reports whether any of them does.
func (l narrowLayer) ReadsUsage() bool {
	for _, all := range l {
		if slices.ContainsFunc(all, func(n Narrowing) bool { return readsUsage(n.Evaluator) }) {
			return true
		}
	}
	return false
}

func (n *Narrowing) narrow(ctx context.Context, r *Request) Decision {
	d := heard(ctx, n.Evaluator, r)
	switch {
	case d.Verdict == Abstain && n.Exhaustive:
		return Decision{
			Class: DefaultDeny, Rule: "default", Layer: PerSandbox, AllowedIf: d.AllowedIf,
			Reason: fmt.Sprintf("no rule of this sandbox allows %s", whatTo(r)),
		}
	case d.Verdict == Allow && n.Exhaustive && !d.Upgrade && r.HTTP != nil && r.HTTP.Upgrade:
		return noWebSocket(r, d.Rule)
	}
	return restricting(d)
}

// noWebSocket refuses what would let pass more than a sandbox is let.
func noWebSocket(r *Request, rule string) Decision {
	return Decision{
		Class: MethodDenied, Rule: rule, Layer: PerSandbox,
		Reason: fmt.Sprintf("rule %s allows some requests to %s and no WebSocket, which shows none", rule, r.Destination),
	}
}

// projectLayer is what projects say about the requests of their sandboxes.
type projectLayer map[string]*openProject

type openProject struct {
	evaluators []Evaluator
	opens      bool
}

// Evaluate takes from a project what it may not give, whoever made its evaluators.
func (l projectLayer) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	own := l[r.Sandbox.Name]
	if own == nil {
		return Decision{Verdict: Abstain}, nil
	}
	d, _ := hear(ctx, r, own.evaluators)
	if !own.opens {
		return restricting(d), nil
	}
	d.AnyProtocol, d.ECH, d.Inject = false, false, ""
	return d, nil
}

// ReadsUsage reports whether any of them does.
func (l projectLayer) ReadsUsage() bool {
	for _, own := range l {
		if slices.ContainsFunc(own.evaluators, readsUsage) {
			return true
		}
	}
	return false
}

// stack puts the layers of a policy together. Where there is no ceiling it makes no
// difference who opens something.
func (f *File) stack(env *Environment, presets []*File) (*Policy, error) {
	l := &env.Layers
	baseline := f.baseline(env)
	p := &Policy{
		evaluators: []Evaluator{baseline},
		ceilings:   f.ceilings(l),
		fallback:   f.Default,
		learning:   env.Learn,
		ech:        f.ech(),
		inspection: env.Inspection,
		never:      f.neverIndex(l.Organisation),
	}
	above, err := l.Organisation.lines()
	if err != nil {
		return nil, err
	}
	projects, err := l.projects(len(p.ceilings) > 0)
	if err != nil {
		return nil, err
	}
	own := []Evaluator{f.topRules(presets, env.Grants)}
	if f.kind == organisationFile {
		above, own = own, nil
	}
	p.evaluators = append(p.evaluators, above...)
	p.below = append(own, projects.opening()...)
	p.narrowing = projects.closed()
	p.evaluators = append(p.evaluators, f.sandboxLayer(env.Grants))
	if len(l.Narrowing) > 0 {
		p.narrowing = append(p.narrowing, narrowLayer(l.Narrowing))
	}
	p.evaluators = append(p.evaluators, env.Evaluators...)
	p.below = append(p.below, l.User...)
	p.evaluators = append(p.evaluators, f.guards(env)...)
	p.baseline = baseline
	return p, nil
}

// lines is the opinion of the lists of an organisation's file, if there is one.
func (f *File) lines() ([]Evaluator, error) {
	if f == nil {
		return nil, nil
	}
	presets, err := f.parsePresets()
	if err != nil {
		return nil, err
	}
	return []Evaluator{f.topRules(presets, nil)}, nil
}

// projects is the opinion of all projects. One opens nothing without a ceiling.
func (l *Layers) projects(ceiled bool) (projectLayer, error) {
	layer := projectLayer{}
	for name, one := range l.Projects {
		lines, err := one.File.lines()
		if err != nil {
			return nil, fmt.Errorf("project of sandbox %s: %w", name, err)
		}
		layer[name] = &openProject{append(lines, one.Evaluators...), one.Opens && ceiled}
	}
	return layer, nil
}

// opening are the projects that open something.
func (l projectLayer) opening() []Evaluator { return l.that(true) }

// closed are those that do not.
func (l projectLayer) closed() []Evaluator { return l.that(false) }

func (l projectLayer) that(opens bool) []Evaluator {
	some := maps.Clone(l)
	maps.DeleteFunc(some, func(_ string, p *openProject) bool { return p.opens != opens })
	if len(some) == 0 {
		return nil
	}
	return []Evaluator{some}
}

// ceilings are those of the files and the others.
func (f *File) ceilings(l *Layers) (all []Ceiling) {
	for _, file := range []*File{l.Organisation, f} {
		if file == nil || !file.Ceiled {
			continue
		}
		rs := &rules{own: newIndex(), layer: file.ceilingLayer(l), silence: exhaustive}
		rs.own.addAll(file.Ceiling, Allow, false)
		rs.own.finish()
		all = append(all, Ceiling{rs, rs.layer})
	}
	return append(all, l.Ceilings...)
}

// ceilingLayer is the organisation's where there is nobody else to have written it.
func (f *File) ceilingLayer(l *Layers) Layer {
	if f.kind == userFile && l.Organisation != nil {
		return User
	}
	return Organisation
}

// guards keep the exceptions that the layers below the organisation make to the
// baseline under the ceilings: each has to be named by every list that is a ceiling.
// Where there is none, and a ceiling all the same, they make none.
func (f *File) guards(env *Environment) (all []Evaluator) {
	above := exceptionsOf(env.Layers.Organisation)
	if f.kind == organisationFile || len(f.ceilings(&env.Layers)) == 0 || len(exceptions(f.Allow))+len(f.UnsafeAllow) == 0 {
		return nil
	}
	for _, file := range []*File{env.Layers.Organisation, f} {
		if file != nil && file.Ceiled {
			all = append(all, guardOf(env, above, file.Ceiling))
		}
	}
	if len(all) == 0 {
		all = append(all, guardOf(env, above, nil))
	}
	return all
}

// exceptionsOf are the rules with which an organisation's file makes exceptions itself,
// and the unsafe ones.
func exceptionsOf(organisation *File) (opening [2][]Rule) {
	if organisation == nil {
		return opening
	}
	return [2][]Rule{organisation.Allow, organisation.UnsafeAllow}
}

// A guard is a baseline that says what it is there for.
type guard struct{ *Baseline }

func guardOf(env *Environment, above [2][]Rule, named []Rule) guard {
	return guard{NewBaseline(BaselineOptions{
		Self: env.Self, Listeners: env.Listeners, Operator: env.Operator,
		Exceptions: slices.Concat(above[0], named), Unsafe: slices.Concat(above[1], named),
	})}
}

// Evaluate denies what the baseline would without the exceptions.
func (g guard) Evaluate(ctx context.Context, r *Request) (Decision, error) {
	d, err := g.Baseline.Evaluate(ctx, r)
	if d.AddressClass == "" {
		return d, err
	}
	d.Rule, d.Layer = "ceiling", Organisation
	d.Reason = "no ceiling names that request to special-purpose space, so no layer below the organisation opens it"
	if d.Class == AddressDenied {
		d.Class = RuleDeny
		d.Reason = "no ceiling names that part of special-purpose space, so no layer below the organisation opens it"
	}
	return d, err
}
