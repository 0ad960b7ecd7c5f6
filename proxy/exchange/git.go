package exchange

import (
	"errors"
	"io"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/gitwire"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
)

// PushReport renders the refusal of a push as a git server refuses refs (gitprotocol-pack): git then prints each ref with the
// reason. ok is false for every other request, and for a push whose commands were not read. git prints nothing of an answer
// that comes while it still sends, so the caller reads the rest of the body first.
func (b *HeldBody) PushReport(r *egress.Refusal, h policy.HTTPRequest) (fields http1.Fields, body []byte, ok bool) {
	if b == nil {
		return nil, nil, false
	}
	h.Body = &policy.Body{Bytes: b.bytes, Ended: b.ended}
	asked := h.Git()
	if asked == nil || asked.Push == nil || !asked.Push.Reports() {
		return nil, nil, false
	}
	a := AnswerTo(r.Decision.Class)
	why := "blocked by egressd: "
	if a.Status >= 500 {
		why = "failed in egressd: "
	}
	body = asked.Push.Refuse(plainText(r, a), func(c gitwire.Command) string {
		if ref := r.Decision.Ref; ref != "" && ref != c.Ref {
			return why + "the same push has " + printable.Text(ref)
		}
		return why + printable.Text(r.Decision.Reason)
	})
	return replyFields(r, a, gitwire.ReportType, len(body)), body, true
}

// Drain reads the rest of the body and drops it. It calls moved before each read. A body that breaks off is an error.
func (b *HeldBody) Drain(moved func()) error {
	if b.ended {
		return nil
	}
	rest := make([]byte, BodyBuffer)
	for {
		moved()
		switch _, err := b.from.Read(rest); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// refusePush answers a push whose commands were read. It returns false if the answer has to be another one.
func (v *h1Conn) refusePush(r *egress.Refusal, x *exchange) bool {
	fields, body, ok := x.held.PushReport(r, *v.request(x).HTTP)
	if !ok || x.held.Drain(func() { v.Deadline(v.Forwarder.Limits.Idle) }) != nil {
		return false
	}
	reply := http1.AppendResponse(nil, 200, statusText(200), append(fields, http1.Field{Name: "Connection", Value: "close"}))
	v.writeLast(append(reply, body...))
	return true
}
