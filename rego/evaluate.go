package rego

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
)

var _ policy.Evaluator = (*Evaluator)(nil)

// Evaluate evaluates the policy for a request. A part that a later stage may still add is unknown and not
// absent. A request that is allowed for some values of the unknown parts is allowed for now, or inspected
// if the HTTP request is unknown. A DNS question is allowed if the name may be reachable in some way.
//
// Deny takes precedence over ask, and ask over allow; without any of them the result is policy.Abstain.
// The caller must count an error as a denial. Errors are failing built-ins, conflicts, an exceeded
// deadline and malformed members.
func (e *Evaluator) Evaluate(ctx context.Context, r *policy.Request) (d policy.Decision, err error) {
	if err := ctx.Err(); err != nil {
		return policy.Decision{}, fmt.Errorf("package %s: %w", e.pkg, err)
	}
	if !e.Decides() {
		return policy.Decision{Verdict: policy.Abstain}, nil
	}
	if r.HTTP != nil && e.reads&readsPath != 0 && !policy.CanonicalPath(r.HTTP.Path) && !e.sameForAll(ctx, r) {
		return e.ambiguousPath(), nil
	}
	if r.HTTP != nil && e.reads&readsMethod != 0 && !policy.CanonicalMethod(r.HTTP.Method) && !e.sameForAll(ctx, r) {
		return e.ambiguousMethod(), nil
	}
	j, err := e.evaluate(ctx, r)
	if err != nil {
		return policy.Decision{}, fmt.Errorf("package %s: %w", e.pkg, err)
	}
	d = j.Decision
	if r.HTTP != nil && !r.HTTP.Unread() && d.Needs.ReadsBody() {
		return e.unclearBody(), nil
	}
	if d.Verdict == policy.Allow && !d.Upgrade && r.HTTP != nil && r.HTTP.Upgrade {
		d.Upgrade = e.sameForAll(ctx, r)
	}
	if d.Verdict == policy.Abstain && r.HTTP != nil && e.reads&readsHTTP != 0 {
		d.Missed = e.missed(ctx, r)
	}
	return d, nil
}

// missed returns the refusal of a request to a destination of which the policy allows other requests, or
// nil if it allows none. It comes from the look-ahead for the tunnel, which the cache has in most cases.
func (e *Evaluator) missed(ctx context.Context, r *policy.Request) *policy.Decision {
	tunnel := *r
	tunnel.HTTP = nil
	d, err := e.evaluate(ctx, &tunnel)
	if err != nil || d.Verdict != policy.Inspect || len(d.AllowedIf) == 0 {
		return nil
	}
	who := "rule " + d.Rule + " allows"
	if len(d.AllowedIf) > 1 {
		who = "rule " + d.Rule + " and others allow"
	}
	reason := clip(who+" a request to "+r.Destination.String()+" only if "+strings.Join(d.AllowedIf, ", or "), maxReasonBytes)
	return &policy.Decision{Class: e.missedClass(d.ways, r.HTTP.Method), Rule: d.Rule, Layer: d.Layer, Reason: reason, AllowedIf: d.AllowedIf}
}

// missedClass returns method-denied if no rule that allows requests takes the method, else the class for
// the first other part of a request that the policy reads.
func (e *Evaluator) missedClass(ways []allowedWay, method string) policy.Class {
	switch {
	case e.reads&readsMethod != 0 && !slices.ContainsFunc(ways, func(w allowedWay) bool { return w.takes(method) }):
		return policy.MethodDenied
	case e.reads&(readsPath|readsQuery) != 0:
		return policy.PathDenied
	}
	return policy.RuleDeny
}

// A judged is a decision. A decision without the HTTP request has the ways in which rules allow requests.
type judged struct {
	policy.Decision
	ways []allowedWay
}

// sameForAll reports whether the policy allows, or has no opinion on, every request to the destination of r.
// A tunnel to it is not inspected for this policy, so a WebSocket to it and an ambiguous head are judged alike.
func (e *Evaluator) sameForAll(ctx context.Context, r *policy.Request) bool {
	tunnel := *r
	tunnel.HTTP = nil
	d, err := e.Evaluate(ctx, &tunnel)
	return err == nil && d.Verdict > policy.Ask && d.Needs&^policy.NeedsCredential == 0
}

// evaluate is Evaluate for a request that the policy can judge. Its decisions are cached.
func (e *Evaluator) evaluate(ctx context.Context, r *policy.Request) (judged, error) {
	if r.Usage == nil && e.ReadsUsage() {
		return judged{}, errNoUsage
	}
	unknown := e.pending(r)
	var buffer [512]byte
	key, cacheable := appendKey(buffer[:0], r, e.reads&^unknown, unknown)
	if cacheable {
		if d, found := e.cache.get(key); found {
			return d, nil
		}
	}
	d, err := e.ask(ctx, r, unknown)
	if err != nil {
		return judged{}, err
	}
	if cacheable {
		e.cache.put(key, d)
	}
	return d, nil
}

// ambiguousPath denies a path that servers interpret differently.
func (e *Evaluator) ambiguousPath() policy.Decision {
	return policy.Decision{
		Class: policy.PathDenied, Rule: e.pkg, Layer: e.layer,
		Reason: "the policy looks at paths, and servers would read this one in different ways",
	}
}

// ambiguousMethod denies a method that a rule about POST would miss, such as "post".
func (e *Evaluator) ambiguousMethod() policy.Decision {
	return policy.Decision{
		Class: policy.MethodDenied, Rule: e.pkg, Layer: e.layer,
		Reason: "the policy looks at methods, and some servers read this one in upper case",
	}
}

// unclearBody denies a body on which the decision depends and that no policy sees.
func (e *Evaluator) unclearBody() policy.Decision {
	return policy.Decision{
		Class: policy.BodyDenied, Rule: e.pkg, Layer: e.layer,
		Reason: "the policy looks at bodies, and this one is not JSON that servers read alike, or longer than 1 MiB",
	}
}

// ask evaluates when it is the sandbox's turn. The deadline excludes the wait for the turn, since every
// earlier evaluation has a deadline, too.
func (e *Evaluator) ask(ctx context.Context, r *policy.Request, unknown inputFields) (judged, error) {
	if err := e.rests.check(r.Sandbox.Name, time.Now()); err != nil {
		return judged{}, err
	}
	ask := e.now
	if unknown != 0 {
		c, err := e.pool.take(ctx, &r.Sandbox)
		if err != nil {
			return judged{}, err
		}
		defer e.pool.give(c)
		ask = func(ctx context.Context, r *policy.Request, cancel topdown.Cancel) (judged, error) {
			return e.partial(ctx, c, r, unknown, cancel)
		}
	}
	if err := e.turns.Take(ctx, r.Sandbox.Holder(), r.Sandbox.Name); err != nil {
		return judged{}, err
	}
	defer e.turns.Give()
	d, err := e.attempts(ctx, func(cancel topdown.Cancel) (judged, error) { return ask(ctx, r, cancel) })
	if err != nil && ctx.Err() == nil && r.Sandbox.Name != "" && (errors.Is(err, errTooMuchMemory) || errors.Is(err, errTooSlow)) {
		e.rests.begin(r.Sandbox.Name, time.Now())
	}
	return d, err
}

// maxAttempts is the number of evaluations before a request counts as too slow. The deadline is wall-clock
// time, so a busy machine alone must not cause a denial.
const maxAttempts = 2

func (e *Evaluator) maxAttempts() int {
	if e.patient {
		return 1
	}
	return maxAttempts
}

// attempts evaluates until an evaluation ends without being cancelled, or maxAttempts are used up.
func (e *Evaluator) attempts(ctx context.Context, evaluate func(topdown.Cancel) (judged, error)) (d judged, err error) {
	for range e.maxAttempts() {
		w := startWatchdog(e.timeLeft(ctx), e.clock(), e.growth)
		d, err = recovering(func() (judged, error) { return evaluate(w.cancel) })
		switch err = w.stop(err); {
		case errors.Is(err, errTooMuchMemory):
			runtime.GC() // frees the memory of the failed evaluation before the next one
		case !topdown.IsCancel(err):
			return d, err
		}
	}
	if topdown.IsCancel(err) {
		err = fmt.Errorf("%w, %v: %w", errTooSlow, e.deadline, err)
	}
	return d, err
}

var errTooSlow = errors.New("the evaluation took longer than it may")

var errFailed = errors.New("the evaluation failed")

// recovering converts a panic inside OPA to an error.
func recovering(evaluate func() (judged, error)) (d judged, err error) {
	defer recovered.Log("evaluating Rego", func() { d, err = judged{}, errFailed })
	return evaluate()
}

// clock returns the clock of the deadline.
func (e *Evaluator) clock() func() time.Duration {
	if e.patient {
		return processorTime
	}
	return since()
}

func (e *Evaluator) timeLeft(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(e.deadline, time.Until(end))
	}
	return e.deadline
}

// newQuery prepares a query. The time that a policy sees is that of the request.
func (e *Evaluator) newQuery(c *compiled, body ast.Body, in *ast.Term, r *policy.Request, cancel topdown.Cancel) *topdown.Query {
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

// now evaluates with complete input.
func (e *Evaluator) now(ctx context.Context, r *policy.Request, cancel topdown.Cancel) (judged, error) {
	var found opinions
	asked := e.whole.queries[e.query]
	err := e.newQuery(e.whole, asked.query, input(r, e.reads), r, cancel).Iter(ctx, func(result topdown.QueryResult) (err error) {
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
		return judged{}, err
	}
	d, err := e.decide(r, &found)
	return judged{Decision: d}, err
}
