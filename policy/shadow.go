package policy

import (
	"context"
	"time"

	"github.com/egressd/egressd/internal/recovered"
)

// A shadow is a policy that is asked beside the one in force. It decides
// nothing, and what goes wrong in it stays in it.
type shadow struct {
	policy *Policy
	room   chan struct{} // holds one value for each question that is being answered
}

const (
	// shadowPatience is how long a shadow has for one answer.
	shadowPatience = 100 * time.Millisecond

	// shadowRoom is how many questions may be under way at a time: one that
	// cannot be interrupted goes on when nobody waits for it any more.
	shadowRoom = 32
)

// ask has the question answered by what start starts, which ends when the
// answer is there, whether somebody still waits for it or not.
func (s *shadow) ask(ctx context.Context, r *Request, start func(func())) Decision {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shadowPatience)
	defer cancel()
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return s.failed("too many questions wait for an answer")
	}
	own, answer := r.clone(), make(chan Decision, 1)
	start(func() {
		defer func() { <-s.room }()
		answer <- s.decide(ctx, own)
	})
	select {
	case d := <-answer:
		return d
	case <-ctx.Done():
		return s.failed("it did not answer in time")
	}
}

func (s *shadow) decide(ctx context.Context, r *Request) (d Decision) {
	defer recovered.Log("asking the policy in shadow", func() { d = s.failed("it could not be evaluated") })
	return s.policy.Decide(ctx, r)
}

func (s *shadow) failed(why string) Decision {
	return Decision{Class: PolicyError, Rule: "policy-error", Layer: Builtin, Reason: why, Policy: s.policy.Digest()}
}
