package policy

import (
	"fmt"
	"slices"
)

// Usage is what one sandbox has used until a request of it is decided. It counts
// what the gate has let through before; the flow that is decided is not in it.
type Usage struct {
	FlowsOpen      int64 // tunnels and requests that are open now
	FlowsMinute    int64 // tunnels and requests that began in the last minute
	RequestsMinute int64 // the HTTP requests among them
	DeniedMinute   int64 // tunnels and requests that were refused in the last minute

	// BytesUp and BytesDown are payload since egressd started, to upstreams and
	// back, as the records of flows count it; what open flows have carried so far
	// is part of it.
	BytesUp, BytesDown int64
}

// A usageReader is an [Evaluator] that may look at a request's usage.
type usageReader interface{ ReadsUsage() bool }

// ReadsUsage reports whether an evaluator of the policy, or of its shadow, looks at
// [Request].Usage, which has to be filled in then.
func (p *Policy) ReadsUsage() bool {
	if p == nil {
		return false
	}
	ceiling := func(c Ceiling) bool { return readsUsage(c.Evaluator) }
	return p.Shadow().ReadsUsage() || slices.ContainsFunc(p.evaluators, readsUsage) ||
		slices.ContainsFunc(p.below, readsUsage) || slices.ContainsFunc(p.narrowing, readsUsage) || slices.ContainsFunc(p.ceilings, ceiling)
}

func readsUsage(e Evaluator) bool {
	r, ok := e.(usageReader)
	return ok && r.ReadsUsage()
}

// Spend has d let through no more than a rule does, of which most is the budget: the
// smaller one holds, and 0 is none.
func (d *Decision) Spend(most int64, rule string, layer Layer) {
	if most > 0 && (d.MaxBytesUp == 0 || most < d.MaxBytesUp) {
		d.MaxBytesUp, d.BudgetRule, d.BudgetLayer = most, rule, layer
	}
}

// exceededBy reports whether a request announces a larger body than the decision
// lets through.
func (d *Decision) exceededBy(h *HTTPRequest) bool {
	return h != nil && d.MaxBytesUp > 0 && h.BodySize > d.MaxBytesUp
}

// OverBudget is the refusal of what d has allowed, and of which more was to go up
// than d lets through.
func (d Decision) OverBudget() Decision {
	return Decision{
		Class: ByteBudget, Rule: d.BudgetRule, Layer: d.BudgetLayer, Policy: d.Policy, Log: d.Log,
		Reason: fmt.Sprintf("rule %s lets at most %d bytes of it go up", d.BudgetRule, d.MaxBytesUp),
	}
}
