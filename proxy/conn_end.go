package proxy

import (
	"cmp"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
)

// refuse answers with the refusal and closes.
func (c *conn) refuse(err error) {
	refusal := forward.AsRefusal(err)
	if c.captured != nil {
		c.refuseCaptured(refusal)
		return
	}
	if c.showPage(refusal) {
		return
	}
	answer := func() { c.farewell(c.replier.refusal(refusal), refusal) }
	if delay := c.server.shared.Penalty(c.peer, refusal); delay > 0 {
		c.timer = c.loop.After(delay, answer)
		return
	}
	answer()
}

// tooLate ends a connection whose head was not complete in time.
func (c *conn) tooLate() {
	if len(c.head) == 0 {
		c.drop()
		return
	}
	c.malformed(policy.ViaUnknown, c.head, forward.ErrHeadLate)
}

// admit takes a place for c, where there is one.
func (c *conn) admit(s *Server) (ok bool) {
	c.connHolder, ok = s.connections.acquire(&c.admission, s.Sandboxes.Holder(&c.peer), c)
	return ok
}

// release gives back the place of c.
func (c *conn) release() {
	if c.setup == nil {
		c.server.connections.releaseHeld(c.connHolder)
		return
	}
	c.server.connections.release(&c.admission)
}

// evict implements [loser].
func (c *conn) evict() {
	c.loop.Post(func() {
		switch {
		case !c.closed && c.refusing: // its record is on its way
			c.reset()
		case !c.closed:
			c.tooMany()
		case c.setup != nil && c.lingering != nil:
			c.lingering.close()
		}
	})
}

// clientGone ends a connection whose client left while its request was decided or
// dialled.
func (c *conn) clientGone() {
	c.closeFlow(string(relay.FirstEnded))
	c.drop()
}

// closeFlow ends the flow, where there is one, and what it is connecting.
func (c *conn) closeFlow(outcome string) {
	if c.setup != nil && c.cancel != nil {
		c.cancel()
		c.cancel = nil
	}
	if c.flow != nil {
		c.flow.CloseNow(egress.End{Outcome: outcome})
		c.flow = nil
	}
}

// drop closes the client. A flow is closed before.
func (c *conn) drop() {
	if c.closed {
		return
	}
	c.closed = true
	c.loop.Stop(c.timer)
	c.loop.CloseFD(c.fd)
	c.release()
}

// farewell sends the last answer and closes. Where the client may have sent
// bytes that nobody reads, it waits a moment for the client to close: a reset
// could otherwise overtake the answer. For that moment it keeps its place; without
// one, it reads what is there and does not wait.
func (c *conn) farewell(answer []byte, refusal *egress.Refusal) {
	if c.closed {
		return
	}
	c.loop.Stop(c.timer)
	c.closeFlow(string(refusal.Decision.Class))
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
		c.lingering = linger(c.loop, c.fd, cmp.Or(c.server.lingerTime, time.Second), c.release)
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
		l.Ready(syscall.EPOLLIN)
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
