package egress

import (
	"context"

	"github.com/egressd/egressd/policy"

	"github.com/egressd/egressd/record"
)

// charge counts the flow, if its sandbox may have one more.
func (f *Flow) charge() (c charge, ok bool) {
	var before policy.Usage
	for gone := true; gone; {
		c, before, ok, gone = f.account().charge(f.began, f.request.HTTP != nil, int64(f.gate.config.FlowsPerSandbox))
	}
	if f.gate.policy.Load().ReadsUsage() {
		seen := before // a copy: each flow would pay for before
		f.request.Usage = &seen
	}
	return c, ok
}

// admit decides the name, resolves it, decides its addresses, and records.
func (f *Flow) admit(ctx context.Context) *Refusal {
	calm := context.WithoutCancel(ctx)
	a := asking{Flow: f}
	if refusal := a.decideOrAsk(ctx, f.request); refusal != nil {
		return f.denied(calm, refusal)
	}
	if dst := &f.request.Destination; !dst.Addr.IsValid() && !f.gate.Route.proxy.Load().resolves(dst) {
		if refusal := f.resolve(calm); refusal != nil {
			return refusal
		}
		if refusal := a.decideOrAsk(ctx, f.request); refusal != nil {
			return f.denied(calm, refusal)
		}
	}
	f.compare(calm, f.request)
	return f.recordDecision()
}

// decide asks the policy in force about r and keeps its answer, for a flow that nobody else
// has yet. Where it must not wait it may return wouldWait.
func (f *Flow) decide(ctx context.Context, r *policy.Request) *Refusal {
	v, wait := f.verdict(ctx, r, f.tunnel, f.hurried)
	if wait {
		return wouldWait
	}
	f.policy, f.decision = v.policy, v.decision
	if passes(v.decision.Verdict) {
		return nil
	}
	return f.refusal(*v.decision)
}

// resolve fills in the addresses. A query that leaves the machine is recorded
// before it is sent.
func (f *Flow) resolve(ctx context.Context) *Refusal {
	if f.gate.config.Resolver == nil {
		return f.failed(ctx, policy.NetworkDNS)
	}
	dst := &f.request.Destination
	var ok bool
	if dst.Addrs, dst.Aliases, ok = f.gate.config.Resolver.Cached(dst.Host); ok && len(dst.Addrs) > 0 {
		return nil
	}
	if f.hurried {
		return wouldWait
	}
	used := f.account()
	defer used.endLookup(dst.Host)
	if !used.startLookup(dst.Host) {
		return f.refuse(policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has too many names looked up at a time"})
	}
	if _, err := f.gate.Records.append(f, recordOf{kind: record.KindDNS}); err != nil {
		return f.refusal(unavailable)
	}
	ctx, cancel := f.gate.patience(ctx)
	defer cancel()
	var err error
	dst.Addrs, dst.Aliases, err = f.gate.config.Resolver.Lookup(ctx, dst.Host)
	switch {
	case f.gate.shut.Load():
		return f.refuse(stopping)
	case err != nil || len(dst.Addrs) == 0:
		return f.failed(ctx, policy.NetworkDNS)
	}
	return nil
}

// refuse records a refusal that happens before anything passed.
func (f *Flow) refuse(d policy.Decision) *Refusal {
	if d.Policy == "" {
		d.Policy = f.gate.Digest()
	}
	f.noteDenial()
	f.decision = &d
	if refusal := f.recordDecision(); refusal != nil {
		return refusal
	}
	return f.refusal(d)
}

// failed records that what was allowed did not come about.
func (f *Flow) failed(ctx context.Context, class policy.Class) *Refusal {
	f.compare(ctx, f.request)
	if refusal := f.recordDecision(); refusal != nil {
		return refusal
	}
	f.recordEnd(End{Outcome: string(class)})
	return f.networkRefusal(class)
}

func (f *Flow) recordDecision() *Refusal {
	kind := record.KindOpen
	switch {
	case f.request.DNS != nil:
		kind = record.KindDNS
	case f.request.HTTP != nil:
		kind = record.KindRequest
	}
	if !passes(f.decision.Verdict) {
		return f.refused(recordOf{kind: kind})
	}
	seq, err := f.gate.Records.append(f, recordOf{kind: kind})
	if err != nil {
		return f.refusal(unavailable)
	}
	f.seq = seq
	return nil
}

// recordEnd writes the close record of a flow that was never open.
func (f *Flow) recordEnd(end End) {
	_, _ = f.gate.Records.append(f, recordOf{kind: record.KindClose, end: end, took: f.took()})
}
