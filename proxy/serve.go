package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
)

// A conn is one client connection, from accept until it is closed or a [tunnel] has it. One goroutine serves it: serve,
// serveConnect, openTunnel and beginTunnel are its steps, and what each needs stands below it.
type conn struct {
	exchange.Client // with what the client has sent and nobody has taken yet in First
	server          *Server
	listener        *listener
	replier         replier // how to answer, once that is known
	admission       fair.Admission
	ctx             context.Context // ends when nobody waits any more for what is under way
	cancel          context.CancelCauseFunc
	state           atomic.Int32
	waits           atomic.Bool  // the client waits for an answer, and has sent nothing behind its request
	came            sandbox.Peer // Peer, as it came; final once it is served
	asked           time.Time    // when the gate was
	socket          net.Conn     // that was accepted; final. Raw is this, or the TLS of a TLS listener on it
	flow            *egress.Flow // that is open, until a tunnel has it
	capture         *capture     // of a captured connection, or of one that is served like those
	carried         bool         // a tunnel has the client and the flow
	refused         bool         // a refusal of the connection is recorded
}

// What a conn does, as far as its eviction concerns that.
const (
	serving    = iota // its goroutine reads from the client, or waits by ctx
	elsewhere         // other code has the client, with deadlines of its own
	farewelled        // it has had its last answer
	evicted
)

// Why ctx ends. [errors.Is] of what it causes tells.
var (
	errLeft       = errors.New("the client has left")
	errCut        = errors.New("the flow was cut")
	errLate       = errors.New("the client's first bytes were late")
	errEvicted    = errors.New("another connection has the place of this one")
	errUnrecorded = errors.New("the record cannot become durable")
	errShut       = errors.New("the server ends")
)

// serve takes a client from accept to close. Where a tunnel comes of it, that goes on when serve has returned.
func (c *conn) serve() {
	defer c.server.running.Done()
	defer c.end()
	switch {
	case c.listener.tls != nil && !c.shakeHands():
	case c.listener.original != nil:
		c.serveCaptured()
	default:
		c.serveRequest()
	}
}

// serveRequest reads a head, or the first byte of SOCKS, and serves what that asks for.
func (c *conn) serveRequest() {
	if !c.patience(c.server.forwarder.Limits.Head) {
		return
	}
	var scanner http1.Scanner
	for {
		var err error
		if c.First, err = c.server.carrying.Read(c.Conn, c.First); err != nil {
			c.headEnded(err)
			return
		}
		if len(c.First) == 0 {
			continue
		}
		switch c.First[0] {
		case 5:
			c.serveSOCKS()
			return
		case 4:
			c.malformed(policy.ViaUnknown, c.First, exchange.ErrSOCKS4)
			return
		}
		req, n, err := c.parseHead(&scanner, c.First)
		switch {
		case errors.Is(err, http1.ErrShort):
			continue
		case err != nil:
			c.malformed(policy.ViaUnknown, c.First, err)
		case req.Method == "CONNECT":
			c.serveConnect(&req, n)
		default:
			c.serveHTTP(policy.ViaHTTP)
		}
		return
	}
}

// parseHead is [http1.ParseRequest] for a head that grows: each byte is searched once until the head is whole.
func (c *conn) parseHead(scanner *http1.Scanner, b []byte) (req http1.Request, n int, err error) {
	if _, err := scanner.Scan(b, c.server.forwarder.Heads); err != nil {
		return http1.Request{}, 0, err
	}
	return http1.ParseRequest(b, c.server.forwarder.Heads)
}

// headEnded records a head that will not be complete. A client that has said nothing leaves no trace.
func (c *conn) headEnded(err error) {
	switch {
	case len(c.First) == 0 || c.isEvicted():
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.malformed(policy.ViaUnknown, c.First, exchange.ErrHeadLate)
	default:
		exchange.RefuseMalformed(c.server.Gate, c.Peer, policy.ViaUnknown, c.First, exchange.ErrHeadCut)
	}
}

// serveHTTP has every request decided on its own.
func (c *conn) serveHTTP(via policy.Via) {
	if c.enter(elsewhere) {
		c.Via = via
		c.ServeH1()
	}
}

// serveConnect serves a CONNECT, whose head has n bytes.
func (c *conn) serveConnect(req *http1.Request, n int) {
	head := c.First[:n]
	dst, err := exchange.ConnectTarget(req)
	if err == nil {
		c.Peer.User, c.Peer.Password, c.Peer.HasCredentials, err = exchange.Credentials(req.Fields)
	}
	if err != nil {
		c.malformed(policy.ViaConnect, head, err)
		return
	}
	c.replier = connectReplier{answer.RecipientOf(req.Fields)}
	c.First = append([]byte(nil), c.First[n:]...)
	c.openTunnel(policy.Request{Via: policy.ViaConnect, Destination: dst})
}

// openTunnel opens what the client asks for, records it, connects, answers, and carries.
func (c *conn) openTunnel(r policy.Request) {
	if !c.patience(0) {
		return
	}
	if policy.IsInquiry(&r.Destination) && c.server.Gate.Inquiries.On() {
		c.serveInquiry(&r)
		return
	}
	c.waits.Store(len(c.First) == 0 && !c.silent())
	c.asked = time.Now()
	defer exchange.NewClientWatch(c.left, func() { c.cancel(errLeft) }).End()
	flow, err := c.server.Gate.Open(c.ctx, c.Peer, r)
	c.capture.decided()
	if err != nil {
		c.refuse(err)
		return
	}
	c.flow = flow
	if refusal := c.assign(flow.Holder(), flow.Sandbox()); refusal != nil {
		c.refuse(refusal)
		return
	}
	flow.OnCut(func() { c.cancel(errCut) })
	synced := c.sync(flow)
	upstream, err := c.dial(flow)
	if err != nil {
		c.refuse(err)
		return
	}
	if answer := c.replier.established(); len(answer) > 0 {
		if _, err := c.Conn.Write(answer); err != nil {
			carry.Abort(upstream)
			c.closeFlow(egress.End{Outcome: record.OutcomeReset})
			return
		}
		c.waits.Store(false)
	}
	if !c.durable(synced) {
		carry.Abort(upstream)
		outcome := record.OutcomeCut
		if errors.Is(context.Cause(c.ctx), errUnrecorded) {
			outcome = record.Outcome(flow.Unrecorded().Decision.Class)
		}
		c.breakOff(outcome)
		return
	}
	c.beginTunnel(upstream)
}

// serveInquiry serves a tunnel to egressd itself. Its requests are answered here, and it leads nowhere.
func (c *conn) serveInquiry(r *policy.Request) {
	defer c.capture.decided()
	if _, err := c.server.Gate.Inquiries.Of(c.ctx, c.Peer, r.Via); err != nil { // before a client is told that it is connected
		c.refuse(err)
		return
	}
	if answer := c.replier.established(); len(answer) > 0 {
		if _, err := c.Conn.Write(answer); err != nil {
			return
		}
	}
	c.TunnelTo = &r.Destination
	c.serveHTTP(r.Via)
}

// assign counts the connection with the sandbox that turned out to have it, or refuses it.
func (c *conn) assign(holder, sandbox string) *egress.Refusal {
	if c.server.connections.Assign(&c.admission, holder, sandbox) {
		return nil
	}
	return c.server.refuseOneMore(c.Peer)
}

// sync has the record of a flow become durable beside what comes next. The channel has the outcome; nil: it is durable.
func (c *conn) sync(flow *egress.Flow) <-chan error {
	known, err := flow.Settled()
	if known && err == nil {
		return nil
	}
	done := make(chan error, 1)
	flow.Durable(func(err error) {
		if err != nil {
			c.cancel(errUnrecorded)
		}
		done <- err
	})
	return done
}

// durable waits for what sync has begun.
func (c *conn) durable(synced <-chan error) bool {
	if synced == nil {
		return true
	}
	select {
	case err := <-synced:
		return err == nil
	case <-c.ctx.Done():
		return false
	}
}

// dial connects to a decided address, unless something ends that before. The error is a [*egress.Refusal].
func (c *conn) dial(flow *egress.Flow) (net.Conn, error) {
	if time.Since(c.asked) > lookAfter && c.left() {
		return nil, errLeft
	}
	upstream, err := flow.Dial(c.ctx)
	switch cause := context.Cause(c.ctx); {
	case cause == nil:
		return upstream, err
	case err == nil:
		carry.Abort(upstream)
		return nil, cause
	default:
		return nil, cause
	}
}

// A tunnel is what is left of a connection once its bytes are carried. Thousands are idle at a time.
type tunnel struct {
	carry.Tunnel
	server  *Server
	flow    *egress.Flow
	holder  *fair.ConnHolder // whose connection it is
	refused *egress.Refusal  // what ended it, or nil; set before it ends
}

// beginTunnel judges the client's first bytes, and has a tunnel carry them and what follows.
func (c *conn) beginTunnel(upstream net.Conn) {
	t := &tunnel{server: c.server, flow: c.flow, holder: c.admission.Holder()}
	c.server.carrying.Begin(&t.Tunnel, c.Conn, upstream, t, c.server.limitsFor(c.flow.Meter(), c.far()))
	c.carried, c.flow = true, nil
	t.flow.OnChange(func() {
		if t.changed(); t.flow.WasCut() {
			c.cancel(errCut)
		}
	})
	(&firstBytes{conn: c, tunnel: t, upstream: upstream, clientFirst: clientFirst(t.flow)}).judge()
}

// far reports whether the client has a network of its own. A packet filter there, which the sandbox may administer, runs
// within calls on the connection.
func (c *conn) far() bool {
	_, foreignOwned := c.listener.Listener.(foreign.Listener)
	addr := c.came.Addr.Addr()
	return foreignOwned || addr.IsValid() && !addr.IsLoopback()
}

// changed looks at what a later policy has made of the flow.
func (t *tunnel) changed() {
	if t.flow.WasCut() {
		t.End(record.OutcomeCut)
		return
	}
	t.Limit(t.flow.Budget())
}

// Spend implements [carry.Owner].
func (t *tunnel) Spend(bytes int) bool { return t.flow.Spend(int64(bytes)) == nil }

// Ended implements [carry.Owner].
func (t *tunnel) Ended(e carry.End) {
	outcome := e.Outcome
	switch {
	case outcome == carry.OverBudget:
		outcome = record.Outcome(t.flow.Exceeded().Decision.Class)
	case outcome == carry.Refused && t.refused != nil:
		outcome = record.Outcome(t.refused.Decision.Class)
	}
	t.flow.Close(egress.End{Up: e.Up, Down: e.Down, Outcome: outcome})
	t.server.connections.ReleaseHeld(t.holder)
}

// lookAfter is how long the gate may take before the client is looked at once more: its destination is not reached for one
// that has left meanwhile.
const lookAfter = 5 * time.Millisecond

// left reports whether the client has gone: both ways of its connection have ended, or it has failed. A client that
// waits for an answer counts as gone, too, once it has ended its side without a byte behind its request: a closed
// connection looks like that.
func (c *conn) left() bool {
	ended, gone := carry.State(c.Raw)
	return gone || ended && c.waits.Load() && !carry.Unread(c.Raw)
}

// patience gives the client d for what comes next; 0 is any time. It returns false for a client that was evicted.
func (c *conn) patience(d time.Duration) bool {
	var until time.Time
	if d > 0 {
		until = time.Now().Add(d)
	}
	c.socket.SetDeadline(until)
	return !c.isEvicted() // who evicts sets a deadline, too
}

func (c *conn) isEvicted() bool { return c.state.Load() == evicted }

// enter goes on to a state, unless the connection was evicted.
func (c *conn) enter(next int32) bool {
	for {
		before := c.state.Load()
		if before == evicted {
			return false
		}
		if c.state.CompareAndSwap(before, next) {
			return true
		}
	}
}

// Evict implements [fair.Evictable]. The goroutine of the connection answers, where it can.
func (c *conn) Evict() {
	switch c.state.Swap(evicted) {
	case serving:
		c.cancel(errEvicted)
		c.socket.SetDeadline(time.Unix(1, 0))
	case elsewhere:
		c.server.recordRefusal(c.came, policy.ViaUnknown, func() { c.server.refuseOneMore(c.came) })
		carry.Abort(c.socket)
	default:
		carry.Abort(c.socket)
	}
}

// shut ends the connection for a server that ends.
func (c *conn) shut() {
	c.cancel(errShut)
	c.socket.Close()
}

// closeFlow ends the flow, where there is one.
func (c *conn) closeFlow(end egress.End) {
	if c.flow != nil {
		c.flow.Close(end)
		c.flow = nil
	}
}

// breakOff ends the connection with a reset, as one does that nobody answers.
func (c *conn) breakOff(outcome record.Outcome) {
	c.closeFlow(egress.End{Outcome: outcome})
	carry.Abort(c.Raw)
}

// end closes what no tunnel has.
func (c *conn) end() {
	c.server.forget(c)
	c.cancel(nil)
	if c.carried {
		return
	}
	if !c.refused && errors.Is(context.Cause(c.ctx), errEvicted) {
		c.server.turnAway(c)
	}
	c.closeFlow(egress.End{Outcome: record.OutcomeCut})
	c.Raw.Close()
	c.server.connections.Release(&c.admission)
}

// A connectReplier answers a CONNECT.
type connectReplier struct{ recipient answer.Recipient }

func (connectReplier) via() policy.Via { return policy.ViaConnect }

func (connectReplier) established() []byte {
	return []byte("HTTP/1.1 200 Connection established\r\n\r\n")
}

func (d connectReplier) refusal(r *egress.Refusal) []byte { return answer.HTTP(r, d.recipient) }

// web reports whether a port is one of those where clients speak first, and TLS or HTTP.
func web(port uint16) bool { return port == 443 || port == 80 }

// literal is the destination that an address stands for by itself.
func literal(a netip.AddrPort) policy.Destination {
	addr := a.Addr().Unmap().WithZone("")
	return policy.Destination{Host: addr.String(), Addr: addr, Port: a.Port()}
}
