package proxy

import (
	"bytes"
	"cmp"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
)

// A replier renders the two answers that a tunnel's way in can give.
type replier interface {
	via() policy.Via
	established() []byte
	refusal(*egress.Refusal) []byte
}

// replies are what a connection is answered before it is a tunnel. Each ends the connection, except for a page.
type replies struct {
	conn      *conn
	replier   replier   // how to answer
	refusing  bool      // a refusal waits for the log: the connection stays admitted until then
	lingering *lingerer // of the last answer, once that was sent and may not have been read
}

func (r *replies) refuse(err error) {
	c := r.conn
	refusal := forward.AsRefusal(err)
	if _, silent := r.replier.(capturedReplier); silent {
		c.captured.refuse(refusal)
		return
	}
	if r.showPage(refusal) {
		return
	}
	answer := func() { r.farewell(r.replier.refusal(refusal), refusal) }
	if delay := c.server.forwarder.Penalty(c.peer, refusal); delay > 0 {
		c.timer = c.loop.After(delay, answer)
		return
	}
	answer()
}

// refuseBy has record refuse c, and then answers by answer. While the log takes its time, the client waits and stays
// admitted. If the refusal is only counted, or the client gives way to another one, it is reset.
func (r *replies) refuseBy(via policy.Via, record func() *egress.Refusal, answer func(*egress.Refusal)) {
	c := r.conn
	if c.server.Gate.Records.WritesAtOnce() {
		answer(record())
		return
	}
	c.loop.Stop(c.timer)
	r.refusing = true
	taken := c.server.recordRefusal(c.peer, via, func() {
		refusal := record()
		c.loop.Post(func() {
			if !c.closed {
				r.refusing = false
				answer(refusal)
			}
		})
	})
	if !taken {
		c.reset()
	}
}

// malformed records what could not be parsed, and answers it.
func (r *replies) malformed(via policy.Via, raw []byte, err error) {
	c := r.conn
	c.rest = bytes.Clone(raw) // something may be unread, too: leave the answer time to arrive
	gate, peer, raw := c.server.Gate, c.peer, c.rest
	r.refuseBy(via, func() *egress.Refusal { return forward.RefuseMalformed(gate, peer, via, raw, err) }, func(refusal *egress.Refusal) {
		r.farewell(forward.MalformedReply(refusal, err), refusal)
	})
}

// tooMany refuses a connection over the limit without serving it. If the log does not write at once, the connection is
// reset: it is not admitted and must not wait.
func (r *replies) tooMany() {
	c := r.conn
	server, peer := c.server, c.peer
	if !server.Gate.Records.WritesAtOnce() {
		server.recordRefusal(peer, policy.ViaUnknown, func() { server.refuseOneMore(peer) })
		c.reset()
		return
	}
	refusal := server.refuseOneMore(peer)
	if c.captured != nil {
		c.reset()
		return
	}
	r.farewell(forward.HTTPReply(refusal, forward.Recipient{}), refusal)
}

// showPage has a browser show why its CONNECT was refused, and reports whether it does. Browsers
// replace the body of every CONNECT answer but 200 with a page of their own. The client therefore gets 200, and
// inside the tunnel, which has no upstream, a response with the refusal. Such a tunnel needs an authority
// that the browser may trust.
func (r *replies) showPage(refusal *egress.Refusal) bool {
	c := r.conn
	replier, ok := r.replier.(connectReplier)
	if !ok || !strings.HasPrefix(replier.recipient.Agent, "Mozilla/") || forward.AnswerTo(refusal.Decision.Class).Status != 403 || refusal.Destination.Port != 443 {
		return false
	}
	page := c.server.inspector.Page(refusal, "")
	if page == nil {
		return false
	}
	answer := r.replier.established()
	if n, err := relay.Write(c.fd, answer); err != nil || n < len(answer) {
		return false
	}
	c.closeFlow(string(refusal.Decision.Class))
	c.onGoroutine(c.rest, func(h *hosted) { page(&h.Client) })
	return true
}

// farewell sends the last answer and closes. Where the client may have sent
// bytes that nobody reads, it waits a moment for the client to close: a reset
// could otherwise overtake the answer. For that moment it stays admitted. A connection
// that is not admitted reads the bytes that are there and does not wait.
func (r *replies) farewell(answer []byte, refusal *egress.Refusal) {
	c := r.conn
	if c.closed {
		return
	}
	c.loop.Stop(c.timer)
	c.closeRefused(refusal)
	if len(answer) > 0 {
		relay.WriteLast(c.fd, answer)
	}
	switch {
	case len(c.rest) == 0 && !relay.Unread(c.fd):
		c.drop()
	case !c.server.connections.admitted(&c.admission):
		relay.Read(c.fd, c.loop.Scratch())
		c.drop()
	default:
		c.closed = true
		r.lingering = linger(c.loop, c.fd, cmp.Or(c.server.lingerTime, time.Second), c.release)
	}
}

// A lingerer reads and forgets until the client closes. It belongs to the loop.
type lingerer struct {
	loop   *relay.Loop
	fd     int
	timer  *relay.Timer
	closed func() // is told, once
}

func linger(loop *relay.Loop, fd int, moment time.Duration, closed func()) *lingerer {
	l := &lingerer{loop: loop, fd: fd, closed: closed}
	relay.ShutdownWrite(fd)
	l.timer = loop.After(moment, l.close)
	if loop.Watch(fd, l) != nil {
		l.close()
	} else {
		l.Ready(relay.CanRead)
	}
	return l
}

func (l *lingerer) close() {
	if l.fd < 0 {
		return
	}
	l.loop.Stop(l.timer)
	l.loop.CloseFD(l.fd)
	l.fd = -1
	l.closed()
}

func (l *lingerer) Ready(relay.Events) {
	for range 16 {
		n, again, err := relay.Read(l.fd, l.loop.Scratch())
		if again {
			return
		}
		if err != nil || n == 0 {
			break
		}
	}
	l.close()
}
