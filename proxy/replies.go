package proxy

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
)

// A replier renders the two answers that a tunnel's way in can give.
type replier interface {
	via() policy.Via
	established() []byte
	refusal(*egress.Refusal) []byte
}

// silent reports whether the client waits for no answer: it was captured, or has its answer.
func (c *conn) silent() bool {
	_, is := c.replier.(capturedReplier)
	return is
}

// refuse answers an error of Open or Dial, which is a [*egress.Refusal] or says why ctx has ended.
func (c *conn) refuse(err error) {
	switch {
	case errors.Is(err, errLeft), errors.Is(err, errShut):
		c.breakOff(record.OutcomeClientLeft)
		return
	case errors.Is(err, errEvicted):
		return
	case errors.Is(err, errUnrecorded):
		err = c.flow.Unrecorded()
	case errors.Is(err, errCut):
		refusal := c.flow.Refusal()
		if refusal == nil { // an operator cut it
			c.breakOff(record.OutcomeCut)
			return
		}
		err = refusal
	}
	refusal := exchange.AsRefusal(err)
	c.refused = true
	if c.silent() {
		c.refuseCaptured(refusal)
		return
	}
	if c.showPage(refusal) {
		return
	}
	c.pause(c.server.forwarder.Penalty(c.Peer, refusal))
	c.farewell(c.replier.refusal(refusal), refusal, len(c.First) > 0)
}

// pause waits, unless the connection ends before.
func (c *conn) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-c.ctx.Done():
	}
}

// malformed records what could not be parsed, and answers it.
func (c *conn) malformed(via policy.Via, raw []byte, err error) {
	c.refused = true
	refusal := exchange.RefuseMalformed(c.server.Gate, c.Peer, via, raw, err)
	c.farewell(exchange.MalformedReply(refusal, err), refusal, true)
}

// turnAway refuses a client for which there is no place, and waits for nothing: if the log does not write at once, it
// records the refusal later, and resets the connection.
func (s *Server) turnAway(c *conn) {
	if !s.Gate.Records.WritesAtOnce() {
		s.recordRefusal(c.came, c.listener.via(), func() { s.refuseOneMore(c.came) })
		carry.Abort(c.Raw)
		return
	}
	refusal := s.refuseOneMore(c.came)
	if c.listener.original != nil || c.listener.tls != nil && c.Raw == c.socket {
		carry.Abort(c.Raw)
		return
	}
	c.Conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	c.Conn.Write(answer.HTTP(refusal, answer.Recipient{}))
	readOnce(c.Raw) // bytes that nobody has read would turn the end into a reset
}

// readOnce reads and forgets what is there.
func readOnce(c any) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		var b [4 << 10]byte
		raw.Control(func(fd uintptr) { syscall.Read(int(fd), b[:]) })
	}
}

// showPage has a browser show why its CONNECT was refused, and reports whether it does. Browsers
// replace the body of every CONNECT answer but 200 with a page of their own. The client therefore gets 200, and
// inside the tunnel, which has no upstream, a response with the refusal. Such a tunnel needs an authority
// that the browser may trust.
func (c *conn) showPage(refusal *egress.Refusal) bool {
	replier, ok := c.replier.(connectReplier)
	if !ok || !strings.HasPrefix(replier.recipient.Agent, "Mozilla/") || answer.To(refusal.Decision.Class).Status != 403 || refusal.Destination.Port != 443 {
		return false
	}
	page := c.server.inspector.Page(refusal, "", c.Peer.Listener)
	if page == nil || !c.enter(elsewhere) {
		return false
	}
	if _, err := c.Conn.Write(replier.established()); err != nil {
		return false
	}
	c.closeFlow(egress.End{Outcome: record.Outcome(refusal.Decision.Class)})
	page(&c.Client)
	return true
}

// farewell sends the last answer. Where the client may have sent bytes that nobody reads, it waits a moment for the
// client to close: a reset could otherwise overtake the answer. For that moment the connection stays admitted.
func (c *conn) farewell(answer []byte, refusal *egress.Refusal, unread bool) {
	c.closeFlow(egress.End{Outcome: record.Outcome(refusal.Decision.Class), Note: refusal.Note})
	if errors.Is(context.Cause(c.ctx), errShut) || !c.enter(farewelled) {
		return
	}
	moment := cmp.Or(c.server.lingerTime, exchange.LastMoment)
	if unread || carry.Unread(c.Raw) {
		exchange.WriteLast(c.Conn, answer, moment)
		return
	}
	c.Conn.SetDeadline(time.Now().Add(moment))
	c.Conn.Write(answer)
}
