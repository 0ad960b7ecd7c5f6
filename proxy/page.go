package proxy

import (
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
)

// showPage has a browser show why its CONNECT was refused, and reports whether it does. Browsers
// replace the body of every CONNECT answer but 200 with a page of their own. The client therefore gets 200, and
// inside the tunnel, which has no upstream, a response with the refusal. Such a tunnel needs an authority
// that the browser may trust.
func (c *conn) showPage(refusal *egress.Refusal) bool {
	replier, ok := c.replier.(connectReplier)
	if !ok || !strings.HasPrefix(replier.reader.agent, "Mozilla/") || answerTo(refusal.Decision.Class).status != 403 || refusal.Destination.Port != 443 {
		return false
	}
	page := c.server.inspector.page(refusal)
	if page == nil {
		return false
	}
	answer := c.replier.established()
	if n, err := relay.Write(c.fd, answer); err != nil || n < len(answer) {
		return false
	}
	c.closeFlow(string(refusal.Decision.Class))
	c.onGoroutine(c.rest, func(h *hosted) { page(&h.client) })
	return true
}
