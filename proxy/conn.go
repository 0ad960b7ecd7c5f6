package proxy

import (
	"bytes"
	"context"
	"errors"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
	"github.com/egressd/egressd/sandbox"
)

// A conn is one client connection on an event loop, from accept until it is a
// tunnel, belongs to a goroutine, or is closed. All its methods run on the
// loop.
type conn struct {
	tunnel      relay.Tunnel
	*connHolder // of its holder
	loop        *relay.Loop
	flow        *egress.Flow
	*setup      // nil once the first bytes have passed: thousands of tunnels do not carry it along

	headTaken bool // the head was taken: what comes next waits in the kernel
	durable   bool // the flow's record is
	carried   bool // tunnel stands
	closed    bool // the client's descriptor is no longer this connection's
}

// A setup is what a connection needs until it is a tunnel.
type setup struct {
	admission  admission
	fd         int
	peer       sandbox.Peer
	timer      *relay.Timer
	head       []byte        // of the request, while it is incomplete
	scanner    http1.Scanner // of head, or of what was looked at of a captured request
	rest       []byte        // what came behind the head
	cancel     func()        // gives up what is under way: the connect, the search, the waiting for a person or for the policy
	tlsClient  *tlsClient    // of a TLS listener, or nil
	captured   *capture      // nil where the client knows of the proxy
	firstBytes firstBytes
	replies    replies
}

// newConn returns a connection that begins with o.
func newConn(loop *relay.Loop, o *setup) *conn {
	c := &conn{loop: loop, setup: o}
	o.replies.conn, o.firstBytes.conn = c, c
	return c
}

func newClient(in *loopListener, fd int, from sandbox.Peer) *conn {
	c := newConn(in.loop, &setup{fd: fd, peer: from})
	if in.original != nil {
		c.replies.replier = capturedReplier{policy.ViaTransparent}
		c.captured = &capture{conn: c}
	}
	return c
}

// serve begins to serve c, a client of in, or refuses it if it is not admitted. It may have been evicted meanwhile.
// It runs on the loop.
func (c *conn) serve(in *loopListener, admitted bool) {
	switch {
	case c.closed:
	case !admitted:
		c.replies.tooMany()
	case c.captured != nil:
		c.captured.begin(in)
	default:
		c.begin()
	}
}

func (c *conn) begin() {
	c.timer = c.loop.After(c.server.forwarder.Limits.Head, c.tooLate)
	if err := c.loop.Watch(c.fd, c); err != nil {
		c.drop()
	}
}

// Ready reads the head. Once it was taken, bytes stay where they are until the
// tunnel reads them; only a client that is gone altogether counts.
func (c *conn) Ready(e relay.Events) {
	switch {
	case c.replies.refusing:
		return
	case c.headTaken && e.Broken():
		c.clientGone()
		return
	case c.headTaken || !e.Readable():
		return
	case c.captured != nil && c.captured.findingProgram:
		return
	case c.captured != nil:
		c.captured.lookAt(e, false)
		return
	}
	for range readsAtOnce {
		buf := c.loop.Scratch()
		n, again, err := relay.Read(c.fd, buf)
		switch {
		case again:
			return
		case err != nil || n == 0:
			c.leftEarly()
			return
		}
		if c.read(buf[:n]) {
			return
		}
	}
	c.loop.Post(func() {
		if !c.closed {
			c.Ready(relay.CanRead)
		}
	})
}

// readsAtOnce is how often one connection reads before others have a turn.
const readsAtOnce = 16

// read takes b as the next bytes of the head and reports whether something
// else than more bytes comes next. b is only valid until it returns.
func (c *conn) read(b []byte) (done bool) {
	if len(c.head) > 0 {
		c.head = append(c.head, b...)
		b = c.head
	}
	switch b[0] {
	case 5:
		c.onGoroutine(b, (*hosted).serveSOCKS)
		return true
	case 4:
		c.replies.malformed(policy.ViaUnknown, b, forward.ErrSOCKS4)
		return true
	}
	req, n, err := c.parseHead(b)
	switch {
	case errors.Is(err, http1.ErrShort):
		if len(c.head) == 0 {
			c.head = bytes.Clone(b)
		}
		return false
	case err != nil:
		c.replies.malformed(policy.ViaUnknown, b, err)
	case req.Method == "CONNECT":
		c.connect(&req, b[:n], b[n:])
	default:
		c.onGoroutine(b, func(h *hosted) { h.ServeH1() })
	}
	return true
}

// parseHead is [http1.ParseRequest] for a head that grows: each byte is searched once until the head is whole.
func (c *conn) parseHead(b []byte) (req http1.Request, n int, err error) {
	if _, err := c.scanner.Scan(b, c.server.forwarder.Heads); err != nil {
		return http1.Request{}, 0, err
	}
	return http1.ParseRequest(b, c.server.forwarder.Heads)
}

// tooLate ends a connection whose head was not complete in time.
func (c *conn) tooLate() {
	if len(c.head) == 0 {
		c.drop()
		return
	}
	c.replies.malformed(policy.ViaUnknown, c.head, forward.ErrHeadLate)
}

// leftEarly ends a connection whose client went away in its head.
func (c *conn) leftEarly() {
	if len(c.head) == 0 {
		c.drop()
		return
	}
	gate, peer, head := c.server.Gate, c.peer, c.head
	c.replies.refuseBy(policy.ViaUnknown, func() *egress.Refusal {
		return forward.RefuseMalformed(gate, peer, policy.ViaUnknown, head, forward.ErrHeadCut)
	}, func(*egress.Refusal) { c.drop() })
}

// connect opens what a CONNECT asks for.
func (c *conn) connect(req *http1.Request, head, rest []byte) {
	c.loop.Stop(c.timer)
	c.headTaken = true
	dst, err := forward.ConnectTarget(req)
	if err != nil {
		c.replies.malformed(policy.ViaConnect, head, err)
		return
	}
	if c.peer.User, c.peer.Password, c.peer.HasCredentials, err = forward.Credentials(req.Fields); err != nil {
		c.replies.malformed(policy.ViaConnect, head, err)
		return
	}
	c.head, c.rest = nil, bytes.Clone(rest)
	c.replies.replier = connectReplier{forward.RecipientOf(req.Fields)}
	c.ask(policy.Request{Via: policy.ViaConnect, Destination: dst})
}

// A connectReplier answers a CONNECT.
type connectReplier struct{ recipient forward.Recipient }

func (connectReplier) via() policy.Via { return policy.ViaConnect }

func (connectReplier) established() []byte {
	return []byte("HTTP/1.1 200 Connection established\r\n\r\n")
}

func (d connectReplier) refusal(r *egress.Refusal) []byte { return forward.HTTPReply(r, d.recipient) }

// ask has the gate decide: at once where it can, else on a goroutine.
func (c *conn) ask(r policy.Request) {
	gate, peer, loop := c.server.Gate, c.peer, c.loop
	flow, wait, err := gate.OpenNow(peer, r)
	if !wait {
		c.decided(flow, err)
		return
	}
	ctx, leave := context.WithCancel(context.Background())
	c.cancel = leave
	c.server.running.Go(func() {
		flow, err := gate.Open(ctx, peer, r)
		leave()
		if !loop.Post(func() { c.decided(flow, err) }) && err == nil {
			flow.CloseNow(egress.End{Outcome: "cut"})
		}
	})
}

// decided starts to connect, and to wait for the record, side by side.
func (c *conn) decided(flow *egress.Flow, err error) {
	c.cancel = nil
	switch {
	case c.closed && err == nil: // the client left in the meantime
		flow.CloseNow(egress.End{Outcome: string(relay.FirstEnded)})
		return
	case c.closed:
		return
	case err != nil:
		c.replies.refuse(err)
		return
	case !c.server.connections.assign(&c.admission, flow.Holder(), flow.Sandbox()):
		flow.CloseNow(egress.End{Outcome: string(policy.TooManyFlows)})
		c.replies.tooMany()
		return
	}
	c.flow = flow
	flow.OnChange(c.changedSoon)
	c.awaitRecord(flow)
	if c.closed || c.flow == nil {
		return
	}
	c.cancel = flow.Connect(c.loop, c.connected)
}

// awaitRecord tells c when the record of its flow is durable.
func (c *conn) awaitRecord(flow *egress.Flow) {
	if known, err := flow.Settled(); known {
		c.recorded(err)
		return
	}
	loop := c.loop
	flow.Durable(func(err error) {
		loop.Post(func() {
			if c.flow == flow { // and not one that has come in its place
				c.recorded(err)
			}
		})
	})
}

// recorded takes the answer of the log. If the record failed, a client that has no answer yet
// is told so, and a tunnel that stands is cut.
func (c *conn) recorded(err error) {
	switch {
	case c.closed || c.flow == nil:
		return
	case err != nil && c.carried:
		c.cut()
		return
	case err != nil:
		c.replies.refuse(c.flow.Unrecorded())
		return
	}
	c.durable = true
	if c.carried {
		c.tunnel.Start()
	}
}

func (c *conn) connected(upstream int, err error) {
	c.cancel = nil
	if err != nil {
		c.replies.refuse(err)
		return
	}
	answer := c.replies.replier.established()
	if n, err := relay.Write(c.fd, answer); err != nil || n < len(answer) {
		relay.Reset(upstream)
		c.loop.CloseFD(upstream)
		c.closeFlow(string(relay.Broken))
		c.drop()
		return
	}
	c.carry(upstream)
}

// clientFirst reports whether nothing passes before the client's first bytes were judged
// (decision 4).
func (c *conn) clientFirst() bool {
	return web(c.flow.Destination().Port) && !c.flow.AnyProtocol() || c.flow.Inspected()
}

func (c *conn) carry(upstream int) {
	limits := c.server.limitsFor(c.flow.Meter(), c.clientFirst())
	c.firstBytes.upstream = upstream
	first := c.rest
	c.rest = nil
	c.loop.Carry(&c.tunnel, c.fd, upstream, first, c.keeper(), limits)
	if c.closed {
		return
	}
	c.carried = true
	if c.durable {
		c.tunnel.Start()
	}
}

// keeper is who a tunnel of c belongs to.
func (c *conn) keeper() relay.Keeper {
	if c.tlsClient != nil {
		return &tlsTunnelKeeper{c, c.tlsClient}
	}
	return c
}

// changedSoon is changed for any goroutine.
func (c *conn) changedSoon() { c.loop.Post(c.changed) }

// changed looks at what a later policy has made of the flow.
func (c *conn) changed() {
	switch {
	case c.closed || c.flow == nil:
	case c.flow.WasCut():
		c.cut()
	case c.carried:
		c.tunnel.Limit(c.flow.Budget())
	}
}

// cut ends a tunnel. A client that has no answer yet is told why, if the policy says so.
func (c *conn) cut() {
	switch {
	case c.closed:
		return
	case c.carried:
		c.tunnel.Cut()
		return
	case c.flow != nil:
		if refusal := c.flow.Refusal(); refusal != nil {
			c.replies.refuse(refusal)
			return
		}
	}
	relay.Reset(c.fd)
	c.tlsClient.noteEnding(wasCut)
	c.closeFlow(string(relay.WasCut))
	c.drop()
}

// Ended implements [relay.Keeper].
func (c *conn) Ended(e relay.End) {
	if c.closed {
		return
	}
	c.closed = true
	if e.Why == relay.OverBudget {
		c.flow.Exceeded()
	}
	outcome := string(e.Why)
	if c.setup != nil {
		c.firstBytes.preamble.stop(c.loop)
		if refused := c.firstBytes.refused; refused != nil {
			outcome = string(refused.Decision.Class)
		}
	}
	c.flow.CloseNow(egress.End{Up: e.Up, Down: e.Down, Outcome: outcome})
	if c.setup != nil && c.cancel != nil { // after Close, which says how it ended
		c.cancel()
	}
	c.release()
}

// admit counts c with h, unless that has too many.
func (c *conn) admit(s *Server, h sandbox.Holder) bool {
	return s.connections.acquire(&c.admission, h, c, &c.connHolder)
}

// release counts c out.
func (c *conn) release() {
	if c.setup == nil {
		c.server.connections.releaseHeld(c.connHolder)
		return
	}
	c.server.connections.release(&c.admission)
}

// evict implements [evictable].
func (c *conn) evict() {
	c.loop.Post(func() {
		switch {
		case !c.closed && c.setup != nil && c.replies.refusing: // its record is on its way
			c.reset()
		case !c.closed:
			c.replies.tooMany()
		case c.setup != nil && c.replies.lingering != nil:
			c.replies.lingering.close()
		}
	})
}

// clientGone ends a connection whose client left while its request was decided or
// dialled.
func (c *conn) clientGone() {
	c.closeFlow(string(relay.FirstEnded))
	c.drop()
}

func (c *conn) closeRefused(r *egress.Refusal) {
	c.endFlow(egress.End{Outcome: string(r.Decision.Class), Note: r.Note})
}

// closeFlow ends the flow, where there is one, and what it is connecting.
func (c *conn) closeFlow(outcome string) { c.endFlow(egress.End{Outcome: outcome}) }

func (c *conn) endFlow(end egress.End) {
	if c.setup != nil && c.cancel != nil {
		c.cancel()
		c.cancel = nil
	}
	if c.flow != nil {
		c.flow.CloseNow(end)
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

// reset ends a connection as one does that nobody answers.
func (c *conn) reset() {
	relay.Reset(c.fd)
	c.drop()
}
