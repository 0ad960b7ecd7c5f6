package egress

import (
	"context"
	"time"

	"github.com/egressd/egressd/policy"
)

// ReadBody reads the body of a request before the request is decided, if a rule reads it. Each call reads on, at least
// one byte or the end; whole asks for all that is left. It returns all that was read so far, or the decision that refuses
// the request: a body that is too long, broken off or late. The gate calls it from one goroutine, and never once the flow
// is open.
type ReadBody func(f *Flow, whole bool) (*policy.Body, *policy.Decision)

// readBody has the body read as far as the policy asks for it, and the request decided again. Nothing of a request leaves
// before. A request whose body nobody can read is refused.
func (f *Flow) readBody(ctx context.Context, read ReadBody, late *time.Time) *Refusal {
	for f.decision.Verdict == policy.Inspect && f.request.HTTP != nil {
		if read == nil || !f.request.HTTP.Unread() {
			d := unreadableBody
			d.Rule, d.Layer, d.Policy = f.decision.Rule, f.decision.Layer, f.decision.Policy
			return f.settle(d)
		}
		body, refused := read(f, f.decision.Needs&policy.NeedsBody != 0)
		if refused != nil {
			return f.settle(*refused)
		}
		h := *f.request.HTTP
		h.Body = body
		f.request.HTTP = &h
		if refusal := f.decideOrAsk(ctx, f.request, late); refusal != nil {
			return refusal
		}
	}
	return nil
}

// settle has the flow stand on a refusal that no policy made.
func (f *Flow) settle(d policy.Decision) *Refusal {
	f.decision = &d
	return f.refusal(d)
}

var unreadableBody = policy.Decision{Class: policy.BodyDenied, Reason: "a rule reads the body of the request, which cannot be read here"}
