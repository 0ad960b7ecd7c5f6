package proxy

import (
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
)

// showPage has a browser read why its CONNECT was refused, and reports whether
// it does. Browsers put a page of their own in place of any answer to a CONNECT
// but 200, so they get that, and in the tunnel, which leads nowhere, a response
// with the status and page of the refusal. Only where there is an authority
// that they may trust.
func (c *conn) showPage(refusal *egress.Refusal) bool {
	replier, ok := c.replier.(connectReplier)
	with := c.server.inspection.Load()
	if !ok || with == nil || !strings.HasPrefix(replier.reader.agent, "Mozilla/") ||
		answerTo(refusal.Decision.Class).status != 403 || refusal.Destination.Port != 443 {
		return false
	}
	answer := c.replier.established()
	if n, err := relay.Write(c.fd, answer); err != nil || n < len(answer) {
		return false
	}
	c.closeFlow(string(refusal.Decision.Class))
	c.onGoroutine(c.rest, func(h *client) { h.showPage(with, refusal) })
	return true
}

// showPage answers the first request inside the client's TLS with the refusal.
func (h *client) showPage(with *inspection, refusal *egress.Refusal) {
	i := &tunnel{client: h, inspection: with, dst: refusal.Destination, broken: refusal}
	leaf, err := with.Authority.Leaf(i.dst.Host)
	if err != nil {
		return
	}
	client, err := i.handshakeClient(leaf, nil)
	if err != nil {
		return
	}
	h.conn = client
	h.server.serveH1(h, i, nil)
}
