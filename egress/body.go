package egress

import (
	"context"
	"maps"
	"time"

	"github.com/egressd/egressd/policy"
)

// A RequestReader finds out what decides an HTTP request beyond its head. The gate calls it from one goroutine, and never
// once the flow is open. It returns the decision that refuses the request if it cannot.
type RequestReader interface {
	// ReadBody reads the body, if a rule reads it. Each call reads on, at least one byte or the end; whole asks for all
	// that is left. It returns all that was read so far. It refuses a body that is too long, broken off or late.
	ReadBody(f *Flow, whole bool) (*policy.Body, *policy.Decision)

	// AskNodes asks the server of the request what node ids of GraphQL in its body are. Each id has a node in the result.
	AskNodes(ctx context.Context, f *Flow, ids []string) (map[string]policy.Node, *policy.Decision)
}

// readRequest finds out of a request what the policy asks for, and has the request decided again. Nothing of the request leaves
// before. A request of which nobody can find it out is refused.
func (f *Flow) readRequest(ctx context.Context, reader RequestReader, late *time.Time) *Refusal {
	for f.decision.Verdict == policy.Inspect && f.request.HTTP != nil {
		h := *f.request.HTTP
		refused := f.unreadable()
		switch ids := h.UnknownNodes(); {
		case reader == nil:
		case h.Unread():
			h.Body, refused = reader.ReadBody(f, f.decision.Needs&policy.NeedsBody != 0)
		case len(ids) > 0:
			var found map[string]policy.Node
			found, refused = reader.AskNodes(ctx, f, ids)
			h.Nodes = maps.Clone(h.Nodes)
			for _, id := range ids {
				if h.Nodes == nil {
					h.Nodes = map[string]policy.Node{}
				}
				h.Nodes[id] = found[id]
			}
		}
		if refused != nil {
			return f.settle(*refused)
		}
		f.request.HTTP = &h
		if refusal := f.decideOrAsk(ctx, f.request, late); refusal != nil {
			return refusal
		}
	}
	return nil
}

// unreadable is the decision about a request of which nobody can find out what a rule needs.
func (f *Flow) unreadable() *policy.Decision {
	return &policy.Decision{
		Class: policy.BodyDenied, Rule: f.decision.Rule, Layer: f.decision.Layer, Policy: f.decision.Policy,
		Reason: "a rule reads the body of the request, which cannot be read here",
	}
}

// settle has the flow stand on a refusal that no policy made.
func (f *Flow) settle(d policy.Decision) *Refusal {
	f.decision = &d
	return f.refusal(d)
}
