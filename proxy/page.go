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
	door, ok := c.door.(connectDoor)
	with := c.server.inspection.Load()
	if !ok || with == nil || !strings.HasPrefix(door.reader.agent, "Mozilla/") ||
		answerTo(refusal.Decision.Class).status != 403 || refusal.Destination.Port != 443 {
		return false
	}
	answer := c.door.established()
	if n, err := relay.Write(c.fd, answer); err != nil || n < len(answer) {
		return false
	}
	c.closeFlow(string(refusal.Decision.Class))
	c.toGoroutine(c.rest, func(h *hosted) { h.showPage(with, refusal) })
	return true
}

// showPage answers the first request inside the client's TLS with the refusal.
func (h *hosted) showPage(with *inspection, refusal *egress.Refusal) {
	i := &inside{hosted: h, with: with, dst: refusal.Destination, broken: refusal}
	leaf, err := with.Authority.Leaf(i.dst.Host)
	if err != nil {
		return
	}
	client, err := i.handshakeNear(leaf, nil)
	if err != nil {
		return
	}
	h.client = client
	h.server.serveH1(h, i, nil)
}
