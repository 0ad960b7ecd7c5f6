package egress

import (
	"context"
	"sync"

	"github.com/egressd/egressd/policy"
)

// decisions keeps one copy of each decision that allows: thousands of tunnels
// stand on the same few rules. It is safe for concurrent use.
type decisions struct {
	mu    sync.Mutex
	known map[decisionKey]*policy.Decision
}

// A decisionKey has every field of a decision that allows. Two decisions with the same key are
// one: a field that is missing here, such as Inject, would be another decision's.
type decisionKey struct {
	rule, reason, policy string
	question, source     string
	layer                policy.Layer
	verdict              policy.Verdict
	needs                policy.Needs
	anyProtocol, ech     bool
	upgrade              bool
	inject               string
	maxBytesUp           int64
	budgetRule           string
	budgetLayer          policy.Layer
	log                  bool
}

const decisionsMost = 1024

// of returns d, or an equal decision that other flows share. Denials are not shared: a sandbox could fill the table
// with them.
func (s *decisions) of(d policy.Decision) *policy.Decision {
	if d.Shadow != nil || d.Missed != nil || d.Class != "" || d.AddressClass != "" || len(d.AllowedIf) > 0 {
		own := d
		return &own
	}
	key := decisionKey{d.Rule, d.Reason, d.Policy, d.Question, d.Source, d.Layer, d.Verdict, d.Needs, d.AnyProtocol, d.ECH, d.Upgrade, d.Inject, d.MaxBytesUp, d.BudgetRule, d.BudgetLayer, d.Log}
	s.mu.Lock()
	defer s.mu.Unlock()
	if same := s.known[key]; same != nil {
		return same
	}
	if s.known == nil || len(s.known) >= decisionsMost {
		s.known = map[decisionKey]*policy.Decision{}
	}
	own := d
	s.known[key] = &own
	return &own
}

// A verdict is a policy's decision about a request, which the flow has not adopted yet.
type verdict struct {
	policy   *policy.Policy
	decision *policy.Decision // not changed: others may share it
}

// verdict asks the policy in force about r, and changes nothing of the flow. With now, it
// reports wait in place of asking a policy that may take its time, or searching a long head. f.mu must not be held.
func (f *Flow) verdict(ctx context.Context, r *policy.Request, tunnel contents, now bool) (v verdict, wait bool) {
	v.policy = f.gate.policy.Load()
	if v.decision, wait = f.searched(ctx, v.policy, r, now); wait || v.decision != nil {
		return v, wait
	}
	if !v.policy.Prompt() {
		if now {
			return v, true
		}
		var done context.CancelFunc
		ctx, done = f.gate.untilShut(ctx)
		defer done()
	}
	r = f.counted(v.policy, r)
	d := f.gate.Approvals.classify(v.policy.Decide(ctx, f.gate.Approvals.apply(f.id, r)), r)
	if f.gate.shut.Load() && !v.policy.Prompt() {
		d = stopping // or it would be an error of the policy
	}
	if tunnel == opaque && d.Verdict == policy.Inspect {
		d = tooLateToLook(d)
	}
	v.decision = f.gate.shared.of(d)
	return v, false
}
