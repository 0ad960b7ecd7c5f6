package policy

import (
	"context"
	"slices"
)

// Probes are what a question for a name, which has no port and no method, is tried with.
type Probes struct {
	Ports   []uint16 // one of each stretch of ports over which no opinion changes
	Methods []string
}

// A prober is an [Evaluator] whose opinion may differ from port to port, or from method to
// method. Probe adds to p what tells apart its opinions on the destination of r.
type prober interface {
	Probe(ctx context.Context, r *Request, p *Probes)
}

// decideName decides a question for a name. The name may be resolved where all layers let
// the same port and the same method pass, also of the hosts that it leads to. Paths are not
// tried, and Rego does not see the method.
func (p *Policy) decideName(ctx context.Context, r *Request) Decision {
	at := *r
	var refused Decision
	told := false // refused says what the name leads to, not that it is shut
	probes := p.probes(ctx, r)
	for i, port := range probes.Ports {
		at.Destination.Port = port
		d := p.tryMethods(ctx, &at, probes.Methods)
		d.Policy = p.digest
		if d.Verdict >= Inspect {
			d.Verdict, d.Needs, d.AllowedIf, d.Inject = Allow, 0, nil, ""
			return d
		}
		tells := !told && p.opensName(ctx, &at, probes.Methods)
		if i == 0 || tells || d.Verdict > refused.Verdict {
			refused, told = d, told || tells
		}
	}
	refused.Needs, refused.Question = 0, ""
	return refused
}

// tryMethods decides a question at one port. If that depends on the method, all layers
// have to let the same one pass.
func (p *Policy) tryMethods(ctx context.Context, r *Request, methods []string) Decision {
	d, _ := p.judge(ctx, r)
	if d.Verdict < Inspect || d.Needs&NeedsMethod == 0 {
		return d
	}
	question, tried, refused := *r.DNS, *r, d
	tried.DNS = &question
	for _, question.method = range methods {
		if refused, _ = p.judge(ctx, &tried); refused.Verdict >= Inspect {
			return d
		}
	}
	return refused
}

// opensName reports whether r would pass but for what its destination leads to.
func (p *Policy) opensName(ctx context.Context, r *Request, methods []string) bool {
	if len(r.Destination.Addrs)+len(r.Destination.Aliases) == 0 {
		return false
	}
	bare := *r
	bare.Destination.Addrs, bare.Destination.Aliases = nil, nil
	d := p.tryMethods(ctx, &bare, methods)
	return d.Verdict >= Inspect
}

// probes are those of all layers, and the ports of the web first.
func (p *Policy) probes(ctx context.Context, r *Request) (all Probes) {
	all.Ports = append(make([]uint16, 0, 16), 443, 80, 1)
	all.Methods = []string{"any other"} // that no rule names
	for _, some := range [][]Evaluator{p.evaluators, p.below, p.narrowing} {
		probe(ctx, r, some, &all)
	}
	for _, c := range p.ceilings {
		probe(ctx, r, []Evaluator{c.Evaluator}, &all)
	}
	slices.Sort(all.Ports[2:])
	slices.Sort(all.Methods)
	all.Ports, all.Methods = slices.Compact(all.Ports), slices.Compact(all.Methods)
	return all
}

func probe(ctx context.Context, r *Request, evaluators []Evaluator, p *Probes) {
	for _, e := range evaluators {
		if e, ok := e.(prober); ok {
			e.Probe(ctx, r, p)
		}
	}
}

// Probe implements [prober].
func (rs *rules) Probe(_ context.Context, r *Request, p *Probes) {
	s := rs.searchFor(r)
	s.probe(p)
	rs.resolvedTo(r, func(s search) { s.probe(p) })
}

func (s *search) probe(p *Probes) {
	for _, b := range s.buckets {
		for ; b != nil; b = b.next {
			for i := range b.rules {
				p.add(&b.rules[i])
			}
		}
	}
}

// Probe implements [prober].
func (l sandboxLayer) Probe(ctx context.Context, r *Request, p *Probes) {
	if own := l.of(&r.Sandbox); own != nil {
		own.Probe(ctx, r, p)
	}
}

// Probe implements [prober].
func (l projectLayer) Probe(ctx context.Context, r *Request, p *Probes) {
	if own := l[r.Sandbox.Name]; own != nil {
		probe(ctx, r, own.evaluators, p)
	}
}

// Probe implements [prober].
func (l narrowLayer) Probe(ctx context.Context, r *Request, p *Probes) {
	for _, n := range l[r.Sandbox.Name] {
		probe(ctx, r, []Evaluator{n.Evaluator}, p)
	}
}

func (p *Probes) add(r *rule) {
	p.Methods = append(p.Methods, r.methods...)
	p.addPorts(r.ports)
}

// addPorts adds the first port of each range of s, and the first one after it.
func (p *Probes) addPorts(s portSet) {
	for _, r := range s.ranges() {
		p.Ports = append(p.Ports, max(r.first, 1))
		if r.last < 65535 {
			p.Ports = append(p.Ports, r.last+1)
		}
	}
}
