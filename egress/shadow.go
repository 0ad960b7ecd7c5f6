package egress

import (
	"context"

	"github.com/egressd/egressd/policy"
)

// compare asks the shadow policy about r before the record is written. It may block, and the caller must be the only user
// of the flow.
func (f *Flow) compare(ctx context.Context, r *policy.Request) {
	f.decision = f.comparedTo(ctx, verdict{f.policy, f.decision}, r)
}

// comparedTo is the decision of v, with what the shadow of its policy says of r where that differs.
func (f *Flow) comparedTo(ctx context.Context, v verdict, r *policy.Request) *policy.Decision {
	if v.policy.Shadow() == nil {
		return v.decision
	}
	return f.gate.shared.of(v.policy.Compare(ctx, f.gate.Approvals.apply(f.id, r), *v.decision, f.gate.tasks.start))
}

// denied compares what the policy refuses, and records it. Nothing is to be recorded of what
// has to be decided once more.
func (f *Flow) denied(ctx context.Context, refusal *Refusal) *Refusal {
	if refusal == wouldWait {
		return wouldWait
	}
	f.compare(ctx, f.request)
	return f.refuse(*f.decision)
}
