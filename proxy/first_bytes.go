package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/sniff"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
)

// accessDenied is the fatal TLS alert access_denied (RFC 8446 §6.2), in a
// record that every version reads.
var accessDenied = []byte{21, 3, 3, 0, 2, 2, 49}

// firstBytes are what the client of a tunnel says first, in conn.First, while they are judged against what was asked for.
// They go up once they have passed, and the goroutine that judges ends then.
type firstBytes struct {
	conn        *conn
	tunnel      *tunnel
	upstream    net.Conn
	clientFirst bool // nothing passes before the client's first bytes were judged (decision 4)
	hello       sniff.Assembler
	late        *time.Timer // when they have to be complete
	spoke       atomic.Bool // the client has said something
	sent        int         // of them, the preamble, went up already (decision 46)
	ended       bool        // no more comes: what is there has to do
}

// clientFirst reports whether nothing passes before the client's first bytes were judged.
func clientFirst(flow *egress.Flow) bool {
	return web(flow.Destination().Port) && !flow.AnyProtocol() || flow.Inspected()
}

// judge reads until the first bytes can be judged, and says what becomes of them.
func (f *firstBytes) judge() {
	t, c := f.tunnel, f.conn
	f.late = time.AfterFunc(c.server.forwarder.Limits.Hello, f.tooLate)
	defer f.late.Stop()
	if !f.clientFirst {
		t.Down()
	}
	f.spoke.Store(len(c.First) > 0)
	for len(c.First) == 0 && !f.ended {
		if !f.read(0) {
			return
		}
		f.spoke.Store(len(c.First) > 0)
		f.late.Reset(c.server.forwarder.Limits.Hello)
	}
	switch {
	case len(c.First) > 0:
		f.judgeWhole()
	case f.clientFirst:
		t.Leave(record.OutcomeClientLeft)
	default:
		f.handOver()
		t.NothingUp()
	}
}

// judgeWhole judges first bytes, of which there are some, once there are enough.
func (f *firstBytes) judgeWhole() {
	t, c := f.tunnel, f.conn
	port := t.flow.Destination().Port
	for {
		protocol := detect(c.First, port)
		if protocol == sniff.Undecided && f.ended {
			protocol = sniff.Other
		}
		switch {
		case protocol == sniff.Undecided:
			if !f.awaitPreamble() {
				return
			}
			continue
		case protocol == sniff.TLS:
			hello, err := f.hello.Parse(c.First)
			switch {
			case errors.Is(err, sniff.ErrShort) && len(c.First) < c.server.forwarder.Limits.HelloBytes && !f.ended:
				if !f.read(0) {
					return
				}
				continue
			case errors.Is(err, sniff.ErrShort) && f.ended: // no server answers half a hello
				f.judgeOther()
			case err != nil:
				f.pass(accessDenied, tlsClaim(malformedClaim(err)))
			default:
				f.judgeTLS(&hello)
			}
		case protocol == sniff.HTTP1 && f.takeHTTP():
		default:
			f.judgeOther()
		}
		return
	}
}

// tooLate ends a tunnel whose first bytes are not complete in time. A server that has spoken may go on alone.
func (f *firstBytes) tooLate() {
	if !f.clientFirst && f.tunnel.Spoken() && !f.spoke.Load() {
		return
	}
	f.tunnel.End(record.OutcomeFirstBytesLate)
	f.conn.cancel(errLate)
}

// read reads more of the first bytes, or notes their end. It waits no longer than d; 0 is any time. It returns false if
// the tunnel is over.
func (f *firstBytes) read(d time.Duration) (goOn bool) {
	c := f.conn
	if d > 0 {
		c.Conn.SetReadDeadline(time.Now().Add(d))
		defer c.Conn.SetReadDeadline(time.Time{})
	}
	var err error
	c.First, err = c.server.carrying.Read(c.Conn, c.First)
	switch {
	case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		return true
	case errors.Is(err, io.EOF):
		f.ended = true
		return true
	}
	f.tunnel.Leave(record.OutcomeClientLeft)
	return false
}

// detect returns the protocol that first begins, for a port. Plain HTTP is not accepted on port 443. On ports
// other than 443 and 80, the words of another protocol could look like a request, so the whole request line
// must be valid.
func detect(first []byte, port uint16) sniff.Protocol {
	p := sniff.Detect(first)
	if p != sniff.HTTP1 || port == 80 {
		return p
	}
	if port == 443 {
		return sniff.Other
	}
	line, _, whole := bytes.Cut(first, []byte("\n"))
	switch {
	case bytes.IndexByte(line, 0) >= 0: // as in git's own protocol, whose client waits for an answer
		return sniff.Other
	case bytes.HasSuffix(line, []byte(" HTTP/1.1\r")), bytes.HasSuffix(line, []byte(" HTTP/1.0\r")):
		return sniff.HTTP1
	case whole || len(first) > 8<<10:
		return sniff.Other
	default:
		return sniff.Undecided
	}
}

// preamblePause is the time without a byte after which the client's first bytes count as a preamble.
const preamblePause = time.Second

// awaitPreamble reads on where the first bytes are too few to tell what they begin. A client may send a few bytes and then
// wait for the server, as with JDWP-Handshake. If the rules allow any protocol, such a preamble passes after a pause.
// Later bytes are held as soon as the protocol can be told, and judged together with the preamble, which alone is too
// short for a server to act on. It returns false if the tunnel is over.
func (f *firstBytes) awaitPreamble() bool {
	t, c := f.tunnel, f.conn
	if f.clientFirst || sniff.Detect(c.First) != sniff.Undecided {
		return f.read(0)
	}
	before := len(c.First)
	if f.sent == before {
		return f.read(0)
	}
	if f.sent == 0 {
		if !f.read(min(preamblePause, c.server.forwarder.Limits.Hello/2)) {
			return false
		}
		if len(c.First) > before || f.ended {
			return true
		}
		if !f.narrow(nil, otherProtocol) {
			return false
		}
		t.Limit(t.flow.Budget())
		f.late.Stop() // until more comes
	}
	if !t.Send(c.First[f.sent:]) {
		t.Leave("")
		return false
	}
	f.sent = len(c.First)
	if !f.read(0) {
		return false
	}
	f.late.Reset(c.server.forwarder.Limits.Hello)
	return true
}

// judgeOther judges first bytes of no known protocol.
func (f *firstBytes) judgeOther() {
	t, c := f.tunnel, f.conn
	if t.flow.HasCanaries() {
		if err := c.server.forwarder.ScanFirst(c.ctx, t.flow, c.First); err != nil {
			f.refuse(nil, err)
			return
		}
	}
	f.pass(nil, otherProtocol)
}

// judgeTLS judges first bytes that begin with a hello.
func (f *firstBytes) judgeTLS(hello *sniff.Hello) {
	t := f.tunnel
	claim := claimOf(hello)
	if host, ok := f.claimedHost(claim); ok && f.redirect(host) {
		return
	}
	if !f.narrow(accessDenied, tlsClaim(claim)) {
		return
	}
	switch {
	case t.flow.Inspected():
		f.takeTLS(claim.ALPN)
	case hello.AllowsRetry():
		f.passWatchingHello(claim, hello.Size)
	default:
		f.passNow()
	}
}

// claimedHost returns the host that a hello names in a tunnel that was opened to an address. Once something has passed,
// the tunnel stays where it leads.
func (f *firstBytes) claimedHost(claim *policy.ClientHello) (policy.Destination, bool) {
	to := f.tunnel.flow.Destination()
	if !to.Addr.IsValid() || claim.ServerName == "" || f.tunnel.Spoken() || f.sent > 0 {
		return policy.Destination{}, false
	}
	return policy.Destination{Host: claim.ServerName, Port: to.Port, Asked: to.Addr}, true
}

// redirect ends a tunnel to an address, on whose connection nothing was said, and opens another one to the host that the
// client claims, if the policy mentions that host. Otherwise the claim is judged in the tunnel to the address.
func (f *firstBytes) redirect(host policy.Destination) bool {
	c := f.conn
	r := policy.Request{Via: c.replier.via(), Destination: host}
	if !c.server.Gate.Outlook.Mentions(c.ctx, c.Peer, r) || !f.take() {
		return false
	}
	carry.Abort(f.upstream)
	c.closeFlow(egress.End{Outcome: record.OutcomeNamed})
	c.replier = capturedReplier{c.replier.via()}
	k := &capture{conn: c, to: netip.AddrPortFrom(host.Asked, host.Port), name: host.Host, claimed: true}
	k.open()
	return true
}

// take gives the client and the flow back to the conn, unless the upstream has spoken or the tunnel is over.
func (f *firstBytes) take() bool {
	f.late.Stop()
	c := f.conn
	if !f.tunnel.Take() {
		return false
	}
	c.carried, c.flow = false, f.tunnel.flow
	c.flow.OnCut(func() { c.cancel(errCut) })
	return true
}

// takeHTTP serves plain HTTP in the tunnel by deciding every request. The tunnel's own connection, on which nothing was
// said, goes: each request has a flow of its own. A server that has spoken is no HTTP server.
func (f *firstBytes) takeHTTP() bool {
	if !f.take() {
		return false
	}
	c := f.conn
	host := c.flow.Destination()
	carry.Abort(f.upstream)
	c.closeFlow(egress.End{Up: int64(f.sent), Outcome: record.OutcomeHTTP})
	c.TunnelTo = &host
	c.serveHTTP(c.replier.via())
	return true
}

// takeTLS serves a tunnel whose requests have to be decided: the client's TLS ends here, and another begins. What was said
// in clear is no part of TLS.
func (f *firstBytes) takeTLS(offered []string) {
	c := f.conn
	if f.sent > 0 || !f.take() {
		f.tunnel.refused = f.tunnel.flow.Failed(policy.NotTLS, "something was said before TLS began")
		f.farewell(accessDenied)
		return
	}
	flow, host := c.flow, c.flow.Destination()
	if !c.enter(elsewhere) {
		return
	}
	flow.Keep(nil) // the connection ends with the tunnel, or serves the next one
	c.flow, c.TunnelTo, c.Via = nil, &host, c.replier.via()
	c.server.inspector.ServeTunnel(&c.Client, flow, f.upstream, offered)
}

// tlsClaim adds what a hello claims.
func tlsClaim(claim *policy.ClientHello) func(*policy.Request) {
	return func(r *policy.Request) { r.Protocol, r.TLS = policy.ProtocolTLS, claim }
}

func otherProtocol(r *policy.Request) { r.Protocol = policy.ProtocolOpaque }

// claimOf turns a hello into what policy reads. A server name that is not a
// canonical name equals no host, so it is kept for the record only.
func claimOf(h *sniff.Hello) *policy.ClientHello {
	claim := &policy.ClientHello{ALPN: h.ALPN, ECH: h.ECH, JA4: h.JA4()}
	if !h.HasServerName {
		return claim
	}
	name, err := policy.ParseName(h.ServerName)
	if err != nil {
		claim.NoName = h.ServerName
		return claim
	}
	claim.ServerName = name
	return claim
}

// malformedClaim returns the claim of a hello that could not be read to its end.
func malformedClaim(err error) *policy.ClientHello {
	claim := &policy.ClientHello{Malformed: true}
	if malformed, ok := errors.AsType[*sniff.MalformedError](err); ok {
		claim.NoName = malformed.Name
	}
	return claim
}

// narrow has the policy decide by what edit adds. After a refusal, the client is sent farewell, and the tunnel is over.
func (f *firstBytes) narrow(farewell []byte, edit func(*policy.Request)) bool {
	if err := f.tunnel.flow.Narrow(f.conn.ctx, edit); err != nil {
		f.refuse(farewell, err)
		return false
	}
	return true
}

// refuse ends the tunnel with the error of a decision, unless something else has ended it.
func (f *firstBytes) refuse(farewell []byte, err error) {
	if f.conn.ctx.Err() != nil {
		f.tunnel.Leave(record.OutcomeClientLeft)
		return
	}
	r := exchange.AsRefusal(err)
	f.tunnel.refused = r
	if farewell == nil && f.clientFirst && f.sent == 0 && byPolicy(r) { // nothing of the upstream has reached the client
		farewell = answer.Goodbye(r, f.conn.First, f.tunnel.flow.Destination().Port)
	}
	f.farewell(farewell)
}

// farewell ends a tunnel of which nothing passes.
func (f *firstBytes) farewell(last []byte) {
	if len(last) > 0 && !f.tunnel.Over() {
		exchange.WriteLast(f.conn.Conn, last, exchange.LastMoment)
	}
	f.tunnel.Leave(carry.Refused)
}

// pass lets the first bytes go if the policy does, by what edit adds.
func (f *firstBytes) pass(farewell []byte, edit func(*policy.Request)) {
	if f.narrow(farewell, edit) {
		f.passNow()
	}
}

// passNow lets the first bytes go, and what comes behind them, as far as the policy lets anything go up.
func (f *firstBytes) passNow() {
	t := f.tunnel
	f.handOver()
	t.Limit(t.flow.Budget())
	if f.clientFirst {
		t.Down()
	}
	t.Up(f.conn.First[f.sent:])
}

// handOver has the tunnel go on without the conn.
func (f *firstBytes) handOver() {
	f.late.Stop()
	f.tunnel.flow.OnChange(f.tunnel.changed)
}

// A helloWatch looks at a tunnel after a ClientHello while the server may ask the client for a second one. The second must
// make the same claim, and not every server compares them: a different server name would reach a host that was never
// decided (decision 40). It implements [carry.Watcher].
type helloWatch struct {
	tunnel *tunnel
	client net.Conn
	claim  *policy.ClientHello
	limit  time.Duration // for a second hello, once it has begun

	mu    sync.Mutex // guards what follows
	retry sniff.Retry
	late  *time.Timer // ends that time
}

// passWatchingHello passes a hello of size bytes and goes on looking for a second one.
func (f *firstBytes) passWatchingHello(claim *policy.ClientHello, size int) {
	c := f.conn
	w := &helloWatch{tunnel: f.tunnel, client: c.Conn, claim: claim, limit: c.server.forwarder.Limits.Hello}
	if behind := c.First[size:]; len(behind) > 0 {
		over, ok := w.Watch(true, behind)
		if !ok {
			f.tunnel.Leave(carry.Refused)
			return
		}
		if over {
			f.passNow()
			return
		}
	}
	f.tunnel.Watch(w)
	f.passNow()
}

// Watch implements [carry.Watcher].
func (w *helloWatch) Watch(up bool, b []byte) (over, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	over, ok = w.look(up, b)
	if (over || !ok) && w.late != nil {
		w.late.Stop()
	}
	return over, ok
}

func (w *helloWatch) look(up bool, b []byte) (over, ok bool) {
	if !up {
		return w.retry.Server(b), true
	}
	hello, err := w.retry.Client(b)
	switch {
	case errors.Is(err, sniff.ErrShort):
		if w.retry.Keeps() && w.late == nil {
			w.late = time.AfterFunc(w.limit, func() { w.tunnel.End(record.OutcomeFirstBytesLate) })
		}
		return false, true
	case errors.Is(err, sniff.ErrNoTLS):
		return true, true
	}
	claim := malformedClaim(err)
	if err == nil {
		claim = claimOf(&hello)
		if sameClaim(claim, w.claim) {
			return true, true
		}
	}
	if err := w.tunnel.flow.Narrow(context.Background(), tlsClaim(claim)); err != nil {
		w.tunnel.refused = exchange.AsRefusal(err)
		exchange.WriteLast(w.client, accessDenied, exchange.LastMoment)
		return true, false
	}
	w.tunnel.Limit(w.tunnel.flow.Budget())
	return true, true
}

// sameClaim reports whether two hellos of one connection differ in their fingerprint alone:
// the second one may leave out extensions (RFC 8446 §4.1.2).
func sameClaim(a, b *policy.ClientHello) bool {
	x, y := *a, *b
	x.JA4, y.JA4 = "", ""
	return reflect.DeepEqual(x, y)
}
