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
	return s.serve(l, name, how)
}

// A capture is what is known of a captured connection until it is a tunnel.
type capture struct {
	to       netip.AddrPort
	name     string              // that to stands for, or that was claimed
	claim    *policy.ClientHello // of a hello whose server name is no name, or nil
	seen     sniff.Protocol      // of its first bytes
	timedOut bool                // the time for its first bytes is over
	reader   forward.Reader      // of the answer, where it is HTTP
	refused  *egress.Refusal     // what is to be answered once it is known how
}

// denyLooks is how long a denied client on a port that is not the web's has to
// show what it speaks.
const denyLooks = time.Second

// beginCaptured is take for a connection that was going elsewhere.
func (s *Server) beginCaptured(in *listener, o *setup) {
	o.replier, o.captured = capturedReplier{}, new(capture)
	c := &conn{loop: in.loop, setup: o}
	if !c.admit(s) {
		c.tooMany()
		return
	}
	c.beginCaptured(in)
}

// beginCaptured asks the kernel for the original destination and the program of c, then calls
// direct.
func (c *conn) beginCaptured(in *listener) {
	to, err := in.original(c.fd)
	c.captured.to = to
	if err := c.loop.Watch(c.fd, c); err != nil {
		c.drop()
		return
	}
	who := c.server.Program
	if who == nil || err != nil {
		c.direct(in, err)
		return
	}
	c.findingProgram = true // one that breaks off until then is decided all the same
	from, loop := c.peer.Addr, c.loop
	in.lookups.Add(1)
	c.server.programLookups.Go(func() {
		defer in.lookups.Add(-1)
		found := who(in.name, from, to)
		loop.Post(func() {
			if !c.closed {
				c.findingProgram = false
				c.peer.Process = found
				c.direct(in, nil)
			}
		})
	})
}

// direct goes on by where c was going, unless that was lost.
func (c *conn) direct(in *listener, lost error) {
	to := c.captured.to
	gate := c.server.Gate
	switch {
	case lost != nil:
		c.turnAway(in.at, "the kernel does not tell where the connection was going")
		return
	case in.is(to) || to.Addr().IsLoopback():
		c.turnAway(to, "a connection to egressd's own listener leads in a circle")
		return
	}
	name, placeholder := gate.Names.OfPlaceholder(c.peer, to.Addr())
	c.captured.name = name
	switch {
	case in.server.isHost(to.Addr()):
		c.askCaptured()
	case placeholder && name == "":
		c.deny(literal(to), "the address stands for no name, or no longer; ask for the name again", func(r *egress.Refusal) { c.refuse(r) })
	case web(to.Port()):
		c.look(c.server.shared.Limits.Hello)
	case name != "":
		c.askCaptured()
	default:
		c.foresee()
	}
}

// turnAway records that a connection leads nowhere, and resets it.
func (c *conn) turnAway(at netip.AddrPort, why string) {
	c.deny(literal(at), why, func(*egress.Refusal) { c.reset() })
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

func web(port uint16) bool { return port == 443 || port == 80 }

// foresee lets a connection to an address that a rule names begin at once, since
// its server may have to speak first; others have to show a name.
func (c *conn) foresee() {
	gate, peer, loop := c.server.Gate, c.peer, c.loop
	r := policy.Request{Via: policy.ViaTransparent, Destination: literal(c.captured.to)}
	then := func(allowed bool) {
		switch {
		case c.closed:
		case allowed:
			c.askCaptured()
		default:
			c.headTaken = false
			c.byAnswer()
		}
	}
	if allowed, wait := gate.ForeseesNow(peer, r); !wait {
		then(allowed)
		return
	}
	c.headTaken = true
	c.server.running.Go(func() {
		allowed := gate.Foresees(context.Background(), peer, r)
		loop.Post(func() { then(allowed) })
	})
}

// byAnswer asks for the one name that the name server gave the sandbox for the address. Without such a name,
// the client's first bytes have to show one. Clients of a server that speaks first never show any.
func (c *conn) byAnswer() {
	to := c.captured.to
	c.captured.name = c.server.Gate.Names.OfAnswer(c.peer, to.Addr())
	if c.captured.name != "" || serverFirst(to.Port()) {
		c.askCaptured()
		return
	}
	c.look(c.server.shared.Limits.Hello)
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

// look waits for the client's first bytes, without taking them.
func (c *conn) look(patience time.Duration) {
	c.timer = c.loop.After(patience, func() {
		c.captured.timedOut = true
		c.lookAt(0, true)
	})
	c.lookAt(0, false)
}

// lookAt looks at what has arrived. final says that no more comes.
func (c *conn) lookAt(e relay.Events, final bool) {
	b := c.loop.Scratch()
	n, _, err := syscall.Recvfrom(c.fd, b, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	final = final || e&(syscall.EPOLLRDHUP|syscall.EPOLLHUP|syscall.EPOLLERR) != 0 || err == nil && n == 0
	if err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR) {
		final = true
	}
	if c.understand(b[:max(n, 0)], final) {
		c.loop.Stop(c.timer)
		c.timer = nil
		c.lookedAt()
	}
}

// understand notes what b begins and reports whether that is all there is to
// know.
func (c *conn) understand(b []byte, final bool) bool {
	k := c.captured
	k.seen = detect(b, k.to.Port())
	switch {
	case k.seen == sniff.Undecided && final:
		k.seen = sniff.Other
	case k.seen == sniff.Undecided:
		return false
	case k.seen == sniff.TLS:
		return c.understandTLS(b, final)
	case k.seen == sniff.HTTP1 && k.refused != nil:
		return c.understandHTTP(b, final)
	}
	return true
}

func (c *conn) understandTLS(b []byte, final bool) bool {
	if c.hello == nil {
		c.hello = new(sniff.Assembler)
	}
	hello, err := c.hello.Parse(b)
	if errors.Is(err, sniff.ErrShort) && !final && len(b) < min(c.server.shared.Limits.HelloBytes, len(c.loop.Scratch())) {
		return false
	}
	c.hello = nil
	k := c.captured
	var claim *policy.ClientHello
	switch {
	case k.name != "" || k.refused != nil:
		return true
	case err != nil:
		claim = malformedClaim(err)
	default:
		claim = claimOf(&hello)
	}
	if k.name = claim.ServerName; claim.NoName != "" {
		k.claim = claim
	}
	return true
}

func (c *conn) understandHTTP(b []byte, final bool) bool {
	req, _, err := c.parseHead(b)
	if errors.Is(err, http1.ErrShort) && !final {
		return false
	}
	if err == nil {
		c.captured.reader = forward.ReaderOf(req.Fields)
		c.captured.refused.Method = methodShown(req.Method)
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
func (c *conn) lookedAt() {
	switch k := c.captured; {
	case k.refused != nil:
		c.denyCaptured()
	case k.seen == sniff.HTTP1:
		c.serveCapturedHTTP()
	default:
		c.askCaptured()
	}
}

func (c *conn) destination() policy.Destination {
	k := c.captured
	if k.name != "" {
		return policy.Destination{Host: k.name, Port: k.to.Port()}
	}
	return literal(k.to)
}

// literal is the destination that an address stands for by itself.
func literal(a netip.AddrPort) policy.Destination {
	addr := a.Addr().Unmap().WithZone("")
	return policy.Destination{Host: addr.String(), Addr: addr, Port: a.Port()}
}

func (c *conn) askCaptured() {
	c.headTaken = true
	r := policy.Request{Via: policy.ViaTransparent, Destination: c.destination()}
	if claim := c.captured.claim; claim != nil { // which no destination agrees with
		r.Protocol, r.TLS = policy.ProtocolTLS, claim
	}
	c.ask(r)
}

// serveCapturedHTTP has every request decided on its own.
func (c *conn) serveCapturedHTTP() {
	k := c.captured
	to := c.destination()
	c.onGoroutine(nil, func(h *hosted) {
		h.Via = policy.ViaTransparent
		if k.name != "" {
			h.TunnelTo = &to
		} else {
			h.CapturedTo = &to
		}
		h.ServeH1()
	})
}

// refuseCaptured answers a refusal, once it is known what the client speaks.
func (c *conn) refuseCaptured(r *egress.Refusal) {
	c.closeFlow(string(r.Decision.Class))
	c.captured.refused = r
	c.headTaken = false
	switch port := c.captured.to.Port(); {
	case serverFirst(port):
		c.reset()
	case c.captured.timedOut: // and is not waited for twice
		c.lookAt(0, true)
	case web(port):
		c.look(c.server.shared.Limits.Hello)
	default:
		c.look(denyLooks)
	}
}

// denyCaptured answers so that the program can tell policy from network trouble.
func (c *conn) denyCaptured() {
	k := c.captured
	byPolicy := forward.AnswerTo(k.refused.Decision.Class).Status < 500
	page := c.server.inspector.Page(k.refused)
	switch {
	case k.seen == sniff.TLS && page != nil:
		c.onGoroutine(nil, func(h *hosted) { page(&h.Client) })
	case k.seen == sniff.TLS && byPolicy:
		c.farewell(accessDenied, k.refused)
	case k.seen == sniff.HTTP1:
		c.farewell(forward.HTTPReply(k.refused, k.reader), k.refused)
	case k.seen == sniff.SSH && byPolicy, k.to.Port() == 22 && byPolicy:
		c.farewell(sshGoodbye(k.refused), k.refused)
	default:
		c.reset()
	}
}

// reset ends a connection as one does that nobody answers.
func (c *conn) reset() {
	relay.Reset(c.fd)
	c.drop()
}

// capturedReplier answers captured connections, which wait for no answer.
type capturedReplier struct{}

func (capturedReplier) via() policy.Via { return policy.ViaTransparent }

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
	a := forward.AnswerTo(r.Decision.Class)
	payload := binary.BigEndian.AppendUint32([]byte{disconnect}, notAllowed)
	payload = appendString(payload, forward.ReasonPhrase(r, a)+". "+a.Message())
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
