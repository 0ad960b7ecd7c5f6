package exchange

import (
	"errors"
	"io"
	"net/http"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/gitwire"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
)

// pushReport renders the refusal of a push as a git server refuses refs (gitprotocol-pack): git then prints each ref with the
// reason. ok is false for every other request, and for a push whose commands were not read or whose body breaks off. git
// prints nothing of an answer that comes while it still sends, so pushReport reads the rest of the body first.
func (x *Exchange) pushReport(r *egress.Refusal) (report answer.Reply, ok bool) {
	if x.held == nil {
		return answer.Reply{}, false
	}
	h := x.request().HTTP
	h.Body = &policy.Body{Bytes: x.held.bytes, Ended: x.held.ended}
	asked := h.Git()
	if asked == nil || asked.Push == nil || !asked.Push.Reports() || x.held.drain(x.BeforeBody) != nil {
		return answer.Reply{}, false
	}
	a := answer.To(r.Decision.Class)
	why := "blocked by egressd: "
	if a.Status >= 500 {
		why = "failed in egressd: "
	}
	body := asked.Push.Refuse(answer.Plain(r, a), func(c gitwire.Command) string {
		if ref := r.Decision.Ref; ref != "" && ref != c.Ref {
			return why + "the same push has " + printable.Text(ref)
		}
		return why + printable.Text(r.Decision.Reason)
	})
	return answer.Reply{Status: http.StatusOK, Phrase: answer.StatusText(http.StatusOK), Fields: answer.Fields(r, a, gitwire.ReportType, len(body)), Body: body}, true
}

// drain reads the rest of the body and drops it. It calls moved before each read. A body that breaks off is an error.
func (b *heldBody) drain(moved func()) error {
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
