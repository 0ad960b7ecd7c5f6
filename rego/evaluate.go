package rego

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
)

var _ policy.Evaluator = (*Evaluator)(nil)

// Evaluate asks the policy about a request, as far as the request is known. A
// part that a later stage may still fill in is unknown, not absent: what would be
// allowed for some of its values is allowed for now, or to be inspected where that
// part is the HTTP request. For a DNS question a name is allowed where it could be
// reached in some way.
//
// Deny beats ask beats allow, and none of them is policy.Abstain. Every failure is
// an error, which the caller has to count as a denial: a failing built-in, a
// conflict, a deadline, a member of a set in a wrong shape.
func (e *Evaluator) Evaluate(ctx context.Context, r *policy.Request) (d policy.Decision, err error) {
	if err := ctx.Err(); err != nil {
		return policy.Decision{}, fmt.Errorf("package %s: %w", e.pkg, err)
	}
	if !e.Decides() {
		return policy.Decision{Verdict: policy.Abstain}, nil
	}
	if e.foreign != nil {
		if d, decided := e.beforeRequest(r); decided {
			return d, nil
		}
	}
	if r.HTTP != nil && e.reads&readsPath != 0 && !policy.CanonicalPath(r.HTTP.Path) {
		return e.ambiguousPath(), nil
	}
	if r.Usage == nil && e.ReadsUsage() {
		return policy.Decision{}, fmt.Errorf("package %s: %w", e.pkg, errNoUsage)
	}
	unknown := e.pending(r)
	var buffer [512]byte
	key, cacheable := appendKey(buffer[:0], r, e.reads&^unknown, unknown)
	if cacheable {
		if d, found := e.cache.get(key); found {
			return d, nil
		}
	}
	d, err = e.ask(ctx, r, unknown)
	if err != nil {
		return policy.Decision{}, fmt.Errorf("package %s: %w", e.pkg, err)
	}
	if cacheable {
		e.cache.put(key, d)
	}
	return d, nil
}

// ambiguousPath denies a path that no rule can be right about.
func (e *Evaluator) ambiguousPath() policy.Decision {
	return policy.Decision{
		Class: policy.PathDenied, Rule: e.pkg, Layer: e.layer,
		Reason: "the policy looks at paths, and servers would read this one in different ways",
	}
}

// ask evaluates in a turn of the sandbox, and under the deadline, which does not
// count the wait for that turn: each evaluation before it has a deadline too.
func (e *Evaluator) ask(ctx context.Context, r *policy.Request, unknown fields) (policy.Decision, error) {
	ask := e.now
	switch {
	case unknown != 0:
		c, err := e.pool.take(ctx, r.Sandbox.Name)
		if err != nil {
			return policy.Decision{}, err
		}
		defer e.pool.give(c)
		ask = func(ctx context.Context, r *policy.Request, cancel topdown.Cancel) (policy.Decision, error) {
			return e.ahead(ctx, c, r, unknown, cancel)
		}
	case e.foreign != nil:
		ask = e.askForeign
	}
	if err := e.turns.Take(ctx, r.Sandbox.Name); err != nil {
		return policy.Decision{}, err
	}
	defer e.turns.Give()
	return e.attempts(ctx, func(cancel topdown.Cancel) (policy.Decision, error) { return ask(ctx, r, cancel) })
}

// maxAttempts is how often a request is evaluated until it counts as too slow: the
// deadline is one of the clock, and a machine that was busy with something else
// for as long denies nothing by that.
const maxAttempts = 2

// attempts evaluates until that ends of itself, or has been cancelled too often.
func (e *Evaluator) attempts(ctx context.Context, evaluate func(topdown.Cancel) (policy.Decision, error)) (d policy.Decision, err error) {
	for range maxAttempts {
		w := watchFor(e.timeLeft(ctx), e.growth)
		d, err = guarded(func() (policy.Decision, error) { return evaluate(w.cancel) })
		switch err = w.stop(err); {
		case errors.Is(err, errTooMuchMemory):
			runtime.GC() // what it has made is not to count for the next
		case !topdown.IsCancel(err):
			return d, err
		}
	}
	return d, err
}

var errFailed = errors.New("the evaluation failed")

// guarded keeps what goes wrong inside OPA here.
func guarded(evaluate func() (policy.Decision, error)) (d policy.Decision, err error) {
	defer recovered.Log("evaluating Rego", func() { d, err = policy.Decision{}, errFailed })
	return evaluate()
}

func (e *Evaluator) timeLeft(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(e.deadline, time.Until(end))
	}
	return e.deadline
}

// question prepares a query. The time that a policy sees, whichever way it asks,
// is that of the request.
func (e *Evaluator) question(c *compiled, body ast.Body, in *ast.Term, r *policy.Request, cancel topdown.Cancel) *topdown.Query {
	return topdown.NewQuery(body).
		WithCompiler(c.compiler).
		WithStore(c.store).
		WithTransaction(c.txn).
		WithBuiltins(e.natives).
		WithInput(in).
		WithTime(r.Time).
		WithCancel(cancel).
		WithMetrics(metrics.NoOp()).
		WithStrictBuiltinErrors(true)
}

// now decides with all of the input known.
func (e *Evaluator) now(ctx context.Context, r *policy.Request, cancel topdown.Cancel) (policy.Decision, error) {
	var found opinions
	asked := e.whole.questions[e.asks]
	err := e.question(e.whole, asked.query, input(r, e.reads), r, cancel).Iter(ctx, func(result topdown.QueryResult) (err error) {
		for _, s := range asked.sets {
			members, ok := result[s.name].Value.(ast.Set)
			if !ok {
				return fmt.Errorf("%s is no set", s.name)
			}
			for _, m := range members.Slice() {
				o, err := opinionOf(m)
				if err != nil {
					return fmt.Errorf("in %s: %w", s.name, err)
				}
				found.add(s.verdict, o)
			}
		}
		return nil
	})
	if err != nil {
		return policy.Decision{}, err
	}
	return e.decide(r, &found)
}
