package rego

import (
	"context"
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/egressd/egressd/policy"
)

// maxPorts bounds the numbers that Probe adds: each costs an evaluation.
const maxPorts = 128

// Probe adds the numbers in the rules and data of the policy to p.Ports, each with its
// successor. A name is not resolved if only another port is open, such as one that Rego
// computes.
func (e *Evaluator) Probe(_ context.Context, _ *policy.Request, p *policy.Probes) {
	if e.foreign == nil && e.reads&readsPort != 0 {
		p.Ports = append(p.Ports, e.ports...)
	}
}

// ports returns the numbers of rules, then of data, in the range of ports. Each has its
// successor behind it.
func (set *sourceSet) ports() (ports []uint16) {
	visit := func(t *ast.Term) bool {
		if n, ok := t.Value.(ast.Number); ok && len(ports) < 2*maxPorts {
			if port, whole := n.Int(); whole && port > 0 && port < 65535 && !slices.Contains(ports, uint16(port)) {
				ports = append(ports, uint16(port), uint16(port)+1)
			}
		}
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(set.modules)) {
		ast.WalkTerms(set.modules[name], visit)
	}
	if data, err := ast.InterfaceToValue(set.data); err == nil {
		ast.WalkTerms(ast.NewTerm(data), visit)
	}
	return ports
}
