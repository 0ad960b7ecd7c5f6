package policy

import (
	"context"
	"maps"
	"slices"
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

// WithShadow returns a policy that decides as p does, and has other asked beside
// it by [Policy.Compare]. It is not [Policy.Prompt].
func (p *Policy) WithShadow(other *Policy) *Policy {
	both := *p
	both.shadow = &shadow{policy: other, room: make(chan struct{}, shadowRoom)}
	both.slow = true
	return &both
}

// Shadow returns the policy that is asked beside p, or nil.
func (p *Policy) Shadow() *Policy {
	if p == nil || p.shadow == nil {
		return nil
	}
	return p.shadow.policy
}

// Compare asks the shadow about a request of which p has decided d, and returns
// d, with d.Shadow set where the shadow would have decided otherwise. It takes a
// tenth of a second at most; a shadow that fails, panics or has not answered by
// then counts as one that denies with [PolicyError]. ctx only lends its values:
// whoever asked may have gone. Without a shadow, Compare returns d.
func (p *Policy) Compare(ctx context.Context, r *Request, d Decision) Decision {
	if p == nil || p.shadow == nil {
		return d
	}
	if said := p.shadow.ask(ctx, r); d.Differs(&said) {
		d.Shadow = &said
	}
	return d
}

// Differs reports whether other decides otherwise than d: with another action, a
// refusal for another class or by another rule, or by looking at requests in a
// tunnel that d lets pass unread.
func (d *Decision) Differs(other *Decision) bool {
	switch {
	case d.Verdict.Action() != other.Verdict.Action():
		return true
	case d.Verdict == Allow:
		return other.Verdict == Inspect
	case d.Verdict == Inspect:
		return false
	}
	return d.Class != other.Class || d.Rule != other.Rule || d.Layer != other.Layer
}

// ask has the question answered on a goroutine of its own, which ends when the
// answer is there, whether somebody still waits for it or not.
func (s *shadow) ask(ctx context.Context, r *Request) Decision {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shadowPatience)
	defer cancel()
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return s.failed("too many questions wait for an answer")
	}
	own, answer := r.clone(), make(chan Decision, 1)
	go func() {
		defer func() { <-s.room }()
		answer <- s.decide(ctx, own)
	}()
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

// clone returns a copy that stays as it is, whatever becomes of the parts of r
// that their owner may write.
func (r *Request) clone() *Request {
	c := *r
	if r.HTTP != nil {
		head := *r.HTTP
		head.Header = maps.Clone(head.Header)
		for name, values := range head.Header {
			head.Header[name] = slices.Clone(values)
		}
		c.HTTP = &head
	}
	return &c
}
