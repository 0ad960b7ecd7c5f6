package rego

import (
	"context"
	"errors"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/policy"
)

// errNoUsage keeps a rule about usage from passing over what nobody counted.
var errNoUsage = errors.New("the policy reads input.usage, and nobody has counted it")

// ReadsUsage reports whether the policy could read input.usage. Its decisions are
// not cached then, and a request without usage is an error.
func (e *Evaluator) ReadsUsage() bool { return e.reads&readsUsage != 0 }

// usagePart is the whole of input.usage: it is known at every stage.
func usagePart(u *policy.Usage) *ast.Term {
	o := make(object, 0, 6)
	for _, field := range [...]struct {
		name  string
		value int64
	}{
		{"flows_open", u.FlowsOpen}, {"flows_minute", u.FlowsMinute}, {"requests_minute", u.RequestsMinute},
		{"denied_minute", u.DeniedMinute}, {"bytes_up", u.BytesUp}, {"bytes_down", u.BytesDown},
	} {
		o.addNumber(true, ast.StringTerm(field.name), field.value)
	}
	return o.term()
}

// aheadOfUsage adds what may come to restrict a request in a tunnel when the sandbox
// has used more than now: a tunnel that nobody looks into would go around it.
func (e *Evaluator) aheadOfUsage(ctx context.Context, c *compiled, r *policy.Request, unknown fields, cancel topdown.Cancel, found *opinions) error {
	if unknown&readsHTTP == 0 {
		return nil
	}
	var later opinions
	if err := e.aheadAt(ctx, c, r, policy.StageHTTP, unknown|readsUsage, cancel, &later); err != nil {
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
