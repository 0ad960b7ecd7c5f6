package proxy

import (
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
)

// showPage has a browser show why its CONNECT was refused, and reports whether it does. Browsers
// replace the body of every CONNECT answer but 200 with a page of their own. The client therefore gets 200, and
// inside the tunnel, which has no upstream, a response with the refusal. Such a tunnel needs an authority
// that the browser may trust.
func (c *conn) showPage(refusal *egress.Refusal) bool {
	replier, ok := c.replier.(connectReplier)
	if !ok || !strings.HasPrefix(replier.reader.Agent, "Mozilla/") || forward.AnswerTo(refusal.Decision.Class).Status != 403 || refusal.Destination.Port != 443 {
		return false
	}
	page := c.server.inspector.Page(refusal)
	if page == nil {
		return false
	}
	answer := c.replier.established()
	if n, err := relay.Write(c.fd, answer); err != nil || n < len(answer) {
		return false
	}
	c.closeFlow(string(refusal.Decision.Class))
	c.onGoroutine(c.rest, func(h *hosted) { page(&h.Client) })
	return true
}

// A connectReplier answers a CONNECT.
type connectReplier struct{ reader forward.Reader }

func (connectReplier) via() policy.Via { return policy.ViaConnect }

func (connectReplier) established() []byte {
	return []byte("HTTP/1.1 200 Connection established\r\n\r\n")
}

func (d connectReplier) refusal(r *egress.Refusal) []byte { return forward.HTTPReply(r, d.reader) }
