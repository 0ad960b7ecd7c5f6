package policy

import (
	"context"
	"slices"
)

// An Evaluator is one opinion inside a [Policy]. Evaluate is called from many
// goroutines at once and must not keep or change r. An error counts as Deny.
type Evaluator interface {
	Evaluate(ctx context.Context, r *Request) (Decision, error)
}

// A prober is an [Evaluator] whose opinion may differ from port to port, or from method to
// method. Probe adds to p what tells apart its opinions on the destination of r.
type prober interface {
	Probe(ctx context.Context, r *Request, p *Probes)
}

// Probes are the ports and methods to try for a DNS question, which has neither. The name
// is resolved if the policy may allow one combination.
type Probes struct {
	Ports   []uint16 // one of each stretch of ports over which no opinion changes
	Methods []string
}

func (p *Probes) add(r *rule) {
	p.Methods = append(p.Methods, r.methods...)
	p.addPorts(r.ports)
}

func (p *Probes) addPorts(s portSet) {
	for _, r := range s.ranges() {
		p.Ports = append(p.Ports, max(r.first, 1))
		if r.last < 65535 {
			p.Ports = append(p.Ports, r.last+1)
		}
	}
}

func probe(ctx context.Context, r *Request, evaluators []Evaluator, p *Probes) {
	for _, e := range evaluators {
		if e, ok := e.(prober); ok {
			e.Probe(ctx, r, p)
		}
	}
}

// A usageReader is an [Evaluator] that may look at a request's usage.
type usageReader interface{ ReadsUsage() bool }

func readsUsage(e Evaluator) bool {
	r, ok := e.(usageReader)
	return ok && r.ReadsUsage()
}

// A namer is an [Evaluator] that knows at which ports it lets any name pass.
type namer interface{ namesAt(port uint16) bool }

// MayName reports whether the policy could let some name pass at a port. It runs no Rego, and reports true
// for every policy in Rego. A policy that lets everything pass that no rule mentions may name every port.
func (p *Policy) MayName(port uint16) bool {
	if p == nil {
		return false
	}
	may := func(e Evaluator) bool {
		n, ok := e.(namer)
		return !ok || n.namesAt(port)
	}
	return p.fallback == Allow || p.observed.any() || slices.ContainsFunc(p.evaluators, may) || slices.ContainsFunc(p.below, may)
}

func (rs *rules) namesAt(port uint16) bool {
	return rs.own.namesAt(port) || rs.granted.namesAt(port) || rs.presets.namesAt(port)
}

// namesAt implements [namer]: a baseline lets nothing pass by itself.
func (*Baseline) namesAt(uint16) bool { return false }

// namesAt implements [namer]: the list of a sandbox lets nothing pass by itself.
func (sandboxLayer) namesAt(uint16) bool { return false }
