package policy

import (
	"context"
	"net/netip"
)

// A Part names what of a policy has an opinion.
type Part string

const (
	PartBaseline Part = "baseline"
	PartFile     Part = "file"    // the lists at the top of the file
	PartPresets  Part = "presets" // counts only where the lists are silent
	PartSandbox  Part = "sandbox"
	PartProject  Part = "project"
	PartCeiling  Part = "ceiling" // what it has no room for, no layer below the organisation opens
	PartFurther  Part = "further" // one of the policies in Rego
)

// An Opinion is what one part of a policy says about a request, by itself.
type Opinion struct {
	Part     Part
	Layer    Layer     // whose it is
	By       Evaluator // who has it
	Decision Decision
	Err      error      // why it could not be had, and counts as a denial
	Rules    []Standing // of the file: those that are about the destination, the first that counts first
}

// A Standing is where a rule stands among those that are about a destination.
type Standing struct {
	Rule    string
	Effect  Verdict
	Pattern Pattern
	Line    int // of the file, or of the preset
	Column  int

	// Address is what the host resolved to, where the rule is about that.
	Address netip.Addr

	// Holds says that the rule matches the known part of the request. Depends says that
	// the unknown part (method, path) may still exclude it.
	Holds, Depends bool

	// Ties says that the rule before it does not name the host more closely.
	Ties bool
}

// Opinions returns what each part of the policy says about a request, without putting
// it together: only [Policy.Decide] does. The lists of files come first.
func (p *Policy) Opinions(ctx context.Context, r *Request) (all []Opinion) {
	if p == nil {
		return nil
	}
	var others []Opinion
	for _, e := range p.evaluators {
		if lists, more := opinionsOf(ctx, e, r, Organisation); lists {
			all = append(all, more...)
		} else {
			others = append(others, more...)
		}
	}
	for _, e := range p.below {
		if lists, more := opinionsOf(ctx, e, r, User); lists {
			all = append(all, more...)
		} else {
			others = append(others, more...)
		}
	}
	for _, e := range p.narrowing {
		_, more := opinionsOf(ctx, e, r, PerSandbox)
		others = append(others, more...)
	}
	for _, c := range p.ceilings {
		o := opinionOf(ctx, PartCeiling, c.Evaluator, r)
		o.Layer = c.Layer
		others = append(others, o)
	}
	return append(all, others...)
}

// opinionsOf takes what an evaluator says apart. layer is that of a further one.
func opinionsOf(ctx context.Context, e Evaluator, r *Request, layer Layer) (lists bool, all []Opinion) {
	var o Opinion
	switch e := e.(type) {
	case *rules:
		return true, e.opinions(ctx, r)
	case *Baseline:
		o, lists = opinionOf(ctx, PartBaseline, e, r), true
		layer = Builtin
	case sandboxLayer:
		o, layer = opinionOf(ctx, PartSandbox, e, r), PerSandbox
		if own := e.of(r.Sandbox.Name); own != nil {
			o.Rules = own.standings(r)
		}
	case narrowLayer:
		o, layer = opinionOf(ctx, PartSandbox, e, r), PerSandbox
	case projectLayer:
		o, layer = opinionOf(ctx, PartProject, e, r), Project
	case namedBaseline:
		o, layer = opinionOf(ctx, PartCeiling, e, r), Organisation
	default:
		o = opinionOf(ctx, PartFurther, e, r)
	}
	o.Layer = layer
	return lists, []Opinion{o}
}

func opinionOf(ctx context.Context, part Part, e Evaluator, r *Request) Opinion {
	d, err := e.Evaluate(ctx, r)
	if err != nil {
		d = failed(err.Error())
	}
	return Opinion{Part: part, By: e, Decision: d, Err: err}
}

// opinions takes the lists of the file and its presets apart.
func (rs *rules) opinions(ctx context.Context, r *Request) (all []Opinion) {
	lists := *rs
	lists.presets = nil
	o := opinionOf(ctx, PartFile, &lists, r)
	o.Rules, o.Layer = lists.standings(r), rs.layer
	all = append(all, o)
	if rs.presets == nil {
		return all
	}
	presets := rules{own: rs.presets, layer: rs.layer, silence: rs.silence}
	o = opinionOf(ctx, PartPresets, &presets, r)
	o.Rules, o.Layer = presets.standings(r), rs.layer
	return append(all, o)
}

// standings finds the rules about the host that was asked for, then those that
// deny or ask about what it resolved to.
func (rs *rules) standings(r *Request) (all []Standing) {
	dst := &r.Destination
	for _, b := range rs.find(dst.Host, dst.Addr, dst.Port, r.Sandbox.Name) {
		all = append(all, b.standings(r, netip.Addr{})...)
	}
	for _, addr := range dst.Addrs {
		if addr != dst.Addr {
			all = append(all, rs.own.find("", addr, dst.Port, "").standings(r, addr)...)
		}
	}
	return all
}

func (b *bucket) standings(r *Request, resolved netip.Addr) (all []Standing) {
	var before Pattern
	for ; b != nil; b = b.next {
		if resolved.IsValid() && b.pattern.kind == anyHost {
			break
		}
		for i := range b.rules {
			c := &b.rules[i]
			if !c.ports.has(r.Destination.Port) || !c.stands(r.Sandbox.Name) || resolved.IsValid() && c.effect == Allow {
				continue
			}
			pattern := b.pattern
			if pattern.ports = c.ports; c.effect != Allow && c.ports == everyPort() {
				pattern.ports = portSet{} // the short form of that
			}
			all = append(all, Standing{
				Rule: c.id, Effect: c.effect, Pattern: pattern, Line: c.at.Line, Column: c.at.Column, Address: resolved,
				Holds:   r.HTTP == nil && !c.conditional() || r.HTTP != nil && c.holds(r.HTTP),
				Depends: r.HTTP == nil && c.conditional(),
				Ties:    before != (Pattern{}) && !before.Closer(b.pattern),
			})
			before = b.pattern
		}
	}
	return all
}
