package proxy

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/sniff"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// An Original tells where a captured connection, a descriptor, was going.
type Original func(fd int) (netip.AddrPort, error)

// ServeTransparent is Serve for a listener that receives redirected connections. A connection to the listener
// itself, at any address of the host, is refused: it would lead in a circle. A connection to another port of
// the host is decided as that address, whatever name it claims.
//
// The name of a connection is the one that its address stands for ([egress.Names.OfPlaceholder]), or the one that
// its first bytes claim: a server name of TLS or a Host of HTTP. A claim is not trusted: the gate decides that
// name, resolves it and dials its own answer. On other ports than 443 and 80, if the policy does not allow the
// address itself, the name is the one that the sandbox got the address for ([egress.Names.OfAnswer]). Without a
// name, the address is decided.
func (s *Server) ServeTransparent(l net.Listener, name string, how Original) error {
	return (&listener{Listener: l, server: s, name: name, original: how}).serve()
}

// A capture is a connection whose host is not known yet. It is a captured connection, or a tunnel that a client of the
// proxy has asked for to an address.
type capture struct {
	conn      *conn
	to        netip.AddrPort
	name      string              // that to stands for, or that was claimed
	claimed   bool                // name was claimed
	claim     *policy.ClientHello // of a hello whose server name is no name, or nil
	hello     sniff.Assembler     // of the first bytes
	scanner   http1.Scanner       // of the first bytes
	seen      sniff.Protocol      // of the first bytes
	final     bool                // no more of them comes in time
	late      bool                // since the time for them is over
	recipient answer.Recipient    // of the answer, where it is HTTP
	refused   *egress.Refusal     // what is to be answered once it is known how
	began     func()              // once it is decided, or waits for its first bytes; nil where nobody waits for that
}

// denyLooks is how long a denied client on a port that is not the web's has to
// show what it speaks.
const denyLooks = time.Second

// failedLooks is the same where the upstream cannot be reached: the sandbox's kernel has accepted the connection already, and
// a reset soon after is the nearest thing to a refusal. HTTP clients have sent their request by then, and get a page.
const failedLooks = 20 * time.Millisecond

// nameLooks is how long a client that connects to an address, on a port that is not the web's, has to show a name in its
// first bytes. A client that waits for its server shows none, and is decided by the address then.
const nameLooks = 3 * time.Second

// serveCaptured asks the kernel where the connection was going, and serves it unless that leads in a circle or to
// nothing.
func (c *conn) serveCaptured() {
	k := &capture{conn: c, began: sync.OnceFunc(func() { c.listener.begun.Add(-1) })}
	c.capture = k
	defer k.decided()
	s, in := c.server, c.listener
	to, err := originalOf(c.Raw, in.original)
	k.to = to
	if err != nil {
		k.turnAway(in.at, "the kernel does not tell where the connection was going")
		return
	}
	if s.Program != nil {
		c.Peer.Process = s.Program(in.name, c.Peer.Addr, to)
	}
	if in.is(to) || to.Addr().IsLoopback() {
		k.turnAway(to, "a connection to egressd's own listener leads in a circle")
		return
	}
	name, _ := s.Gate.Names.OfPlaceholder(c.Peer, to.Addr())
	k.name = name
	switch {
	case s.isHost(to.Addr()):
		k.open()
	case web(to.Port()):
		k.look(s.forwarder.Limits.Hello)
		k.goOn()
	case name != "", s.Gate.Outlook.Allows(c.ctx, c.Peer, policy.Request{Via: policy.ViaTransparent, Destination: literal(to)}):
		k.open() // at once, since its server may have to speak first
	default:
		k.byAnswer()
	}
}

// decided notes that a server that ends need not wait for the connection any more. k may be nil.
func (k *capture) decided() {
	if k != nil && k.began != nil {
		k.began()
	}
}

// turnAway records that a connection leads nowhere, and resets it.
func (k *capture) turnAway(at netip.AddrPort, why string) {
	k.deny(literal(at), why)
	carry.Abort(k.conn.Raw)
}

// deny refuses a captured connection for a reason that its listener knows.
func (k *capture) deny(at policy.Destination, why string) *egress.Refusal {
	c := k.conn
	c.refused = true
	return c.server.Gate.Deny(c.Peer, policy.Request{Via: policy.ViaTransparent, Destination: at}, policy.AddressDenied, why)
}

// is reports whether who connects to at comes to this listener.
func (in *listener) is(at netip.AddrPort) bool {
	return at == in.at || in.at.Addr().IsUnspecified() && at.Port() == in.at.Port() && in.server.isHost(at.Addr())
}

// isHost reports whether packets to addr end at this host.
func (s *Server) isHost(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return s.Host != nil && (addr.IsUnspecified() || slices.ContainsFunc(s.Host(), func(own netip.Addr) bool { return own.Unmap().WithZone("") == addr }))
}

// byAnswer asks for the one name that the name server gave the sandbox for the address. Without such a name,
// the client's first bytes have to show one. Clients of a server that speaks first never show any.
func (k *capture) byAnswer() {
	c := k.conn
	k.name = c.server.Gate.Names.OfAnswer(c.Peer, k.to.Addr())
	if k.name != "" || serverFirst(k.to.Port()) {
		k.open()
		return
	}
	k.look(min(nameLooks, c.server.forwarder.Limits.Hello))
	k.goOn()
}

// serverFirst reports whether clients of a port wait for its server, or ask it in
// clear for TLS (STARTTLS): FTP, mail, XMPP. Their first bytes name no host.
func serverFirst(port uint16) bool {
	switch port {
	case 21, 25, 110, 143, 587, 5222:
		return true
	}
	return false
}

// unnamed finds the host of a SOCKS5 client that has asked for an address, as it is found for a captured connection.
func (k *capture) unnamed() {
	if web(k.to.Port()) {
		k.look(k.conn.server.forwarder.Limits.Hello)
		k.goOn()
		return
	}
	k.byAnswer()
}

// look waits for the client's first bytes. A client of the proxy sends none before an answer, so it
// gets the good one. A later refusal is sent in the protocol of the first bytes.
func (k *capture) look(patience time.Duration) {
	c := k.conn
	if !c.silent() {
		c.Conn.Write(c.replier.established()) // a client that is gone shows nothing, and is decided by the address
		c.replier = capturedReplier{c.replier.via()}
	}
	if !c.patience(patience) {
		k.final = true
	}
	if len(c.First) == 0 && !carry.Unread(c.Raw) {
		k.decided()
	}
	for !k.understand(c.First, k.final) {
		var err error
		if c.First, err = c.server.carrying.Read(c.Conn, c.First); err != nil {
			k.final, k.late = true, errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
	c.patience(0)
}

// understand notes what b begins and reports whether that is all there is to
// know.
func (k *capture) understand(b []byte, final bool) bool {
	k.seen = detect(b, k.to.Port())
	switch {
	case k.seen == sniff.Undecided && final:
		k.seen = sniff.Other
	case k.seen == sniff.Undecided:
		return false
	case k.seen == sniff.TLS:
		return k.understandTLS(b, final)
	case k.seen == sniff.HTTP1 && k.refused != nil:
		return k.understandHTTP(b, final)
	}
	return true
}

func (k *capture) understandTLS(b []byte, final bool) bool {
	hello, err := k.hello.Parse(b)
	if errors.Is(err, sniff.ErrShort) && !final && len(b) < k.conn.server.forwarder.Limits.HelloBytes {
		return false
	}
	var claim *policy.ClientHello
	switch {
	case k.name != "" || k.refused != nil || errors.Is(err, sniff.ErrShort) && final && !k.late:
		return true // half a hello, of a client that has ended, is judged as any other bytes
	case err != nil:
		claim = malformedClaim(err)
	default:
		claim = claimOf(&hello)
	}
	k.name, k.claimed = claim.ServerName, claim.ServerName != ""
	if claim.NoName != "" {
		k.claim = claim
	}
	return true
}

func (k *capture) understandHTTP(b []byte, final bool) bool {
	req, _, err := k.conn.parseHead(&k.scanner, b)
	if errors.Is(err, http1.ErrShort) && !final {
		return false
	}
	if err == nil {
		k.recipient = answer.RecipientOf(req.Fields)
		k.refused.Method = methodShown(req.Method)
	}
	return true
}

// methodShown keeps out of replies what is no method of RFC 9110.
func methodShown(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH":
		return method
	}
	return ""
}

// goOn goes on with what was understood.
func (k *capture) goOn() {
	if k.seen == sniff.HTTP1 {
		k.serveHTTP()
		return
	}
	k.open()
}

func (k *capture) destination() policy.Destination {
	d := literal(k.to)
	if k.name == "" {
		return d
	}
	named := policy.Destination{Host: k.name, Port: d.Port}
	if k.claimed {
		named.Asked = d.Addr
	}
	return named
}

// open opens the tunnel to the destination that was found.
func (k *capture) open() {
	c := k.conn
	r := policy.Request{Via: c.replier.via(), Destination: k.destination()}
	if claim := k.claim; claim != nil { // which no destination agrees with
		r.Protocol, r.TLS = policy.ProtocolTLS, claim
	}
	c.capture = k
	c.openTunnel(r)
}

// serveHTTP has every request decided on its own.
func (k *capture) serveHTTP() {
	c := k.conn
	to := k.destination()
	k.decided()
	if k.name != "" {
		c.TunnelTo = &to
	} else {
		c.CapturedTo = &to
	}
	c.serveHTTP(c.replier.via())
}

// refuseCaptured answers a refusal, once it is known what the client speaks.
func (c *conn) refuseCaptured(r *egress.Refusal) {
	c.closeFlow(egress.End{Outcome: record.Outcome(r.Decision.Class), Note: r.Note})
	k := c.capture
	k.refused = r
	k.scanner = http1.Scanner{}
	switch port := k.to.Port(); {
	case serverFirst(port): // its client says nothing before the server does
		k.seen = sniff.Other
	case k.late: // and is not waited for twice
		k.understand(c.First, true)
	case !byPolicy(r):
		k.look(failedLooks)
	case web(port):
		k.look(c.server.forwarder.Limits.Hello)
	default:
		k.look(denyLooks)
	}
	k.answer()
}

// byPolicy reports whether a decision refused, and not the network or egressd's own trouble.
func byPolicy(r *egress.Refusal) bool { return answer.To(r.Decision.Class).Status < 500 }

// answer answers so that the program can tell policy from network trouble.
func (k *capture) answer() {
	c := k.conn
	byPolicy := byPolicy(k.refused)
	page := c.server.inspector.Page(k.refused, c.Peer.Listener+" "+programOf(c.Peer), c.Peer.Listener)
	switch {
	case k.seen == sniff.TLS && page != nil:
		if c.enter(elsewhere) {
			page(&c.Client)
		}
	case k.seen == sniff.TLS && byPolicy:
		c.farewell(accessDenied, k.refused, true)
	case k.seen == sniff.HTTP1:
		c.farewell(answer.HTTP(k.refused, k.recipient), k.refused, true)
	case byPolicy:
		if last := answer.Goodbye(k.refused, c.First, k.to.Port()); last != nil {
			c.farewell(last, k.refused, len(c.First) > 0)
			return
		}
		carry.Abort(c.Raw)
	default:
		carry.Abort(c.Raw)
	}
}

// programOf names the program of a peer, or returns "".
func programOf(peer sandbox.Peer) string {
	if peer.Process == nil {
		return ""
	}
	return peer.Process.Exe
}

// capturedReplier answers connections that wait for no answer: captured ones, and those that have it.
type capturedReplier struct{ way policy.Via }

func (d capturedReplier) via() policy.Via { return d.way }

func (capturedReplier) established() []byte { return nil }

func (capturedReplier) refusal(*egress.Refusal) []byte { return nil }
