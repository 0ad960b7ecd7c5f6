package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/internal/sniff"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
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
	return s.serve(l, wayIn{name: name, original: how})
}

// A capture is a connection whose host is not known yet. It is a captured connection, or a tunnel that a client of the
// proxy has asked for to an address.
type capture struct {
	conn      *conn
	to        netip.AddrPort
	name      string              // that to stands for, or that was claimed
	claimed   bool                // name was claimed
	claim     *policy.ClientHello // of a hello whose server name is no name, or nil
	hello     *sniff.Assembler    // of its first bytes, while they are an incomplete ClientHello
	seen      sniff.Protocol      // of its first bytes
	timedOut  bool                // the time for its first bytes is over
	recipient forward.Recipient   // of the answer, where it is HTTP
	refused   *egress.Refusal     // what is to be answered once it is known how
	looks     int                 // at its first bytes
	looked    int                 // bytes that the last look found
	again     *relay.Timer        // the next look, or nil

	findingProgram bool // a goroutine looks for the program that connects
}

// denyLooks is how long a denied client on a port that is not the web's has to
// show what it speaks.
const denyLooks = time.Second

// nameLooks is how long a client that connects to an address, on a port that is not the web's, has to show a name in its
// first bytes. A client that waits for its server shows none, and is decided by the address then.
const nameLooks = 3 * time.Second

// begin asks the kernel for the original destination and the program of c, then calls
// direct.
func (k *capture) begin(in *loopListener) {
	c := k.conn
	to, err := in.original(c.fd)
	k.to = to
	if err := c.loop.Watch(c.fd, c); err != nil {
		c.drop()
		return
	}
	who := c.server.Program
	if who == nil || err != nil {
		k.direct(in, err)
		return
	}
	k.findingProgram = true // one that breaks off until then is decided all the same
	from, loop := c.peer.Addr, c.loop
	in.lookups.Add(1)
	c.server.programLookups.Go(func() {
		defer in.lookups.Done()
		found := who(in.name, from, to)
		loop.Post(func() {
			if !c.closed {
				k.findingProgram = false
				c.peer.Process = found
				k.direct(in, nil)
			}
		})
	})
}

// direct goes on by where c was going, unless that was lost.
func (k *capture) direct(in *loopListener, lost error) {
	c := k.conn
	to := k.to
	gate := c.server.Gate
	switch {
	case lost != nil:
		k.turnAway(in.at, "the kernel does not tell where the connection was going")
		return
	case in.is(to) || to.Addr().IsLoopback():
		k.turnAway(to, "a connection to egressd's own listener leads in a circle")
		return
	}
	name, _ := gate.Names.OfPlaceholder(c.peer, to.Addr())
	k.name = name
	switch {
	case in.server.isHost(to.Addr()):
		k.ask()
	case web(to.Port()):
		k.look(c.server.forwarder.Limits.Hello)
	case name != "":
		k.ask()
	default:
		k.foresee()
	}
}

// turnAway records that a connection leads nowhere, and resets it.
func (k *capture) turnAway(at netip.AddrPort, why string) {
	c := k.conn
	k.deny(literal(at), why, func(*egress.Refusal) { c.reset() })
}

// deny refuses a captured connection for a reason that its listener knows.
func (k *capture) deny(at policy.Destination, why string, answer func(*egress.Refusal)) {
	c := k.conn
	gate, peer := c.server.Gate, c.peer
	c.replies.refuseBy(policy.ViaTransparent, func() *egress.Refusal {
		return gate.Deny(peer, policy.Request{Via: policy.ViaTransparent, Destination: at}, policy.AddressDenied, why)
	}, answer)
}

// is reports whether who connects to at comes to this listener.
func (in *loopListener) is(at netip.AddrPort) bool {
	return at == in.at || in.at.Addr().IsUnspecified() && at.Port() == in.at.Port() && in.server.isHost(at.Addr())
}

// isHost reports whether packets to addr end at this host.
func (s *Server) isHost(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return s.Host != nil && (addr.IsUnspecified() || slices.ContainsFunc(s.Host(), func(own netip.Addr) bool { return own.Unmap().WithZone("") == addr }))
}

// foresee lets a connection to an address that a rule names begin at once, since
// its server may have to speak first; others have to show a name.
func (k *capture) foresee() {
	c := k.conn
	gate, peer, loop := c.server.Gate, c.peer, c.loop
	r := policy.Request{Via: policy.ViaTransparent, Destination: literal(k.to)}
	then := func(allowed bool) {
		switch {
		case c.closed:
		case allowed:
			k.ask()
		default:
			c.headTaken = false
			k.byAnswer()
		}
	}
	if allowed, wait := gate.Outlook.AllowsNow(peer, r); !wait {
		then(allowed)
		return
	}
	c.headTaken = true
	c.server.running.Go(func() {
		allowed := gate.Outlook.Allows(context.Background(), peer, r)
		loop.Post(func() { then(allowed) })
	})
}

// byAnswer asks for the one name that the name server gave the sandbox for the address. Without such a name,
// the client's first bytes have to show one. Clients of a server that speaks first never show any.
func (k *capture) byAnswer() {
	c := k.conn
	to := k.to
	k.name = c.server.Gate.Names.OfAnswer(c.peer, to.Addr())
	if k.name != "" || serverFirst(to.Port()) {
		k.ask()
		return
	}
	k.look(min(nameLooks, c.server.forwarder.Limits.Hello))
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
		return
	}
	k.byAnswer()
}

// look waits for the client's first bytes, without taking them. A client of the proxy sends none before an answer, so it
// gets the good one. A later refusal is sent in the protocol of the first bytes.
func (k *capture) look(patience time.Duration) {
	c := k.conn
	if _, silent := c.replies.replier.(capturedReplier); !silent {
		relay.Write(c.fd, c.replies.replier.established()) // a client that is gone shows nothing, and is decided by the address
		c.replies.replier = capturedReplier{c.replies.replier.via()}
	}
	c.headTaken = false
	k.looks = 0
	c.timer = c.loop.After(patience, func() {
		k.timedOut = true
		k.lookAt(0, true)
	})
	k.lookAt(0, false)
}

// A look copies all bytes that have arrived. A client could send its first bytes one by one. After looksAtOnce
// looks, the next one comes when an eighth more has arrived, and after lookAgain at the latest.
const (
	looksAtOnce = 8
	lookAgain   = 10 * time.Millisecond
)

// postpones reports whether a look at a few bytes more is to wait, and has it come later.
func (k *capture) postpones() bool {
	c := k.conn
	if k.looks < looksAtOnce || len(c.rest)+relay.Waiting(c.fd) >= k.looked+k.looked/8 {
		return false
	}
	if k.again == nil {
		k.again = c.loop.After(lookAgain, func() {
			if k.again = nil; !c.closed && !c.headTaken {
				k.looked = 0
				k.lookAt(0, false)
			}
		})
	}
	return true
}

// lookAt looks at what has arrived. final says that no more comes.
func (k *capture) lookAt(e relay.Events, final bool) {
	c := k.conn
	final = final || e.Hangup()
	if !final && k.postpones() {
		return
	}
	b := c.loop.Scratch()
	rest := copy(b, c.rest)
	n, _, err := syscall.Recvfrom(c.fd, b[rest:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	k.looks++
	k.looked = rest + max(n, 0)
	final = final || err == nil && n == 0
	if err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR) {
		final = true
	}
	if k.understand(b[:k.looked], final) {
		c.loop.Stop(c.timer)
		c.loop.Stop(k.again)
		c.timer, k.again = nil, nil
		k.lookedAt()
	}
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
	c := k.conn
	if k.hello == nil {
		k.hello = new(sniff.Assembler)
	}
	hello, err := k.hello.Parse(b)
	if errors.Is(err, sniff.ErrShort) && !final && len(b) < min(c.server.forwarder.Limits.HelloBytes, len(c.loop.Scratch())) {
		return false
	}
	k.hello = nil
	var claim *policy.ClientHello
	switch {
	case k.name != "" || k.refused != nil:
		return true
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
	req, _, err := k.conn.parseHead(b)
	if errors.Is(err, http1.ErrShort) && !final {
		return false
	}
	if err == nil {
		k.recipient = forward.RecipientOf(req.Fields)
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

// lookedAt goes on with what was understood.
func (k *capture) lookedAt() {
	switch {
	case k.refused != nil:
		k.answer()
	case k.seen == sniff.HTTP1:
		k.serveHTTP()
	default:
		k.ask()
	}
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

// literal is the destination that an address stands for by itself.
func literal(a netip.AddrPort) policy.Destination {
	addr := a.Addr().Unmap().WithZone("")
	return policy.Destination{Host: addr.String(), Addr: addr, Port: a.Port()}
}

func (k *capture) ask() {
	c := k.conn
	c.headTaken = true
	r := policy.Request{Via: c.replies.replier.via(), Destination: k.destination()}
	if claim := k.claim; claim != nil { // which no destination agrees with
		r.Protocol, r.TLS = policy.ProtocolTLS, claim
	}
	c.ask(r)
}

// serveHTTP has every request decided on its own.
func (k *capture) serveHTTP() {
	c := k.conn
	to := k.destination()
	c.onGoroutine(c.rest, func(h *hosted) {
		h.Via = c.replies.replier.via()
		if k.name != "" {
			h.TunnelTo = &to
		} else {
			h.CapturedTo = &to
		}
		h.ServeH1()
	})
}

// refuse answers a refusal, once it is known what the client speaks.
func (k *capture) refuse(r *egress.Refusal) {
	c := k.conn
	c.closeRefused(r)
	k.refused = r
	c.headTaken = false
	switch port := k.to.Port(); {
	case serverFirst(port):
		c.reset()
	case k.timedOut: // and is not waited for twice
		k.lookAt(0, true)
	case web(port):
		k.look(c.server.forwarder.Limits.Hello)
	default:
		k.look(denyLooks)
	}
}

// answer answers so that the program can tell policy from network trouble.
func (k *capture) answer() {
	c := k.conn
	byPolicy := forward.AnswerTo(k.refused.Decision.Class).Status < 500
	page := c.server.inspector.Page(k.refused, programOf(c.peer))
	switch {
	case k.seen == sniff.TLS && page != nil:
		c.onGoroutine(c.rest, func(h *hosted) { page(&h.Client) })
	case k.seen == sniff.TLS && byPolicy:
		c.replies.farewell(accessDenied, k.refused)
	case k.seen == sniff.HTTP1:
		c.replies.farewell(forward.HTTPReply(k.refused, k.recipient), k.refused)
	case k.seen == sniff.SSH && byPolicy, k.to.Port() == 22 && byPolicy:
		c.replies.farewell(sshGoodbye(k.refused), k.refused)
	default:
		c.reset()
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

// sshGoodbye is what an ssh client, which reads both before any key is agreed
// on, shows to whoever called it: an identification (RFC 4253 §4.2) and a
// disconnect message (§11.1) with the reason.
func sshGoodbye(r *egress.Refusal) []byte {
	const (
		disconnect = 1
		notAllowed = 1 // SSH_DISCONNECT_HOST_NOT_ALLOWED_TO_CONNECT
	)
	payload := binary.BigEndian.AppendUint32([]byte{disconnect}, notAllowed)
	payload = appendString(payload, forward.Sentence(r))
	payload = appendString(payload, "en")
	return appendPacket([]byte("SSH-2.0-egressd\r\n"), payload)
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// appendPacket frames a payload in the clear (RFC 4253 §6).
func appendPacket(b, payload []byte) []byte {
	const block, least = 8, 4
	padding := block - (4+1+len(payload))%block
	if padding < least {
		padding += block
	}
	b = binary.BigEndian.AppendUint32(b, uint32(1+len(payload)+padding))
	b = append(b, byte(padding))
	b = append(b, payload...)
	return append(b, make([]byte, padding)...)
}
