package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/sandbox"
	"github.com/things-go/go-socks5"
	"github.com/things-go/go-socks5/statute"
)

var (
	errSOCKSCommand  = errors.New("only CONNECT of SOCKS5 is served, not BIND or UDP ASSOCIATE")
	errSOCKSReserved = errors.New("the reserved byte of a SOCKS5 request is not 0") // RFC 1928 §4
)

// socksReply never says from which address egressd connects.
func socksReply(code byte) []byte { return []byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0} }

type socksReplier struct{}

func (socksReplier) via() policy.Via { return policy.ViaSOCKS5 }

func (socksReplier) established() []byte { return socksReply(answer.SOCKSOK) }

func (socksReplier) refusal(r *egress.Refusal) []byte {
	return socksReply(answer.To(r.Decision.Class).SOCKS)
}

// serveSOCKS has the library speak RFC 1928 and 1929 up to the request, and
// takes over there: it is never asked to resolve, dial or carry.
func (c *conn) serveSOCKS() {
	if !c.enter(elsewhere) {
		return
	}
	v := &socksHandshake{conn: c, greeting: greeting(c.First)}
	c.Deadline(c.server.forwarder.Limits.Head)
	server := socks5.NewServer(
		socks5.WithAuthMethods(v.methods()),
		socks5.WithResolver(noResolver{}),
		socks5.WithConnectHandle(v.connect),
		socks5.WithBindHandle(v.unsupported),
		socks5.WithAssociateHandle(v.unsupported),
	)
	err := server.ServeConn(socksConn{c.Conn, &c.Client})
	switch {
	case v.asked != nil:
		c.serveAsked(*v.asked)
	case err != nil && !v.recorded && !c.isEvicted():
		v.failed(err)
	}
}

// serveAsked serves the request of a SOCKS5 client.
func (c *conn) serveAsked(dst policy.Destination) {
	if !c.enter(serving) {
		return
	}
	c.replier = socksReplier{}
	r := policy.Request{Via: policy.ViaSOCKS5, Destination: dst}
	if c.server.Gate.Outlook.AwaitsName(c.ctx, c.Peer, r) {
		(&capture{conn: c, to: netip.AddrPortFrom(dst.Addr, dst.Port)}).unnamed()
		return
	}
	c.openTunnel(r)
}

// socksConn is the client with what was read of it put back in front.
type socksConn struct {
	net.Conn
	r io.Reader
}

func (c socksConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// Close does nothing: the library closes what it has served, and here that goes on.
func (socksConn) Close() error { return nil }

// noResolver keeps the library from resolving: names go to the policy first.
type noResolver struct{}

func (noResolver) Resolve(ctx context.Context, _ string) (context.Context, net.IP, error) {
	return ctx, nil, nil
}

// A socksHandshake is one client on its way to a tunnel.
type socksHandshake struct {
	*conn
	greeting []byte              // its first bytes, which hold no password
	recorded bool                // what became of it
	asked    *policy.Destination // what it asks for; nil: nothing yet
}

// greeting returns the version and the methods that b begins with.
func greeting(b []byte) []byte {
	if len(b) > 1 {
		b = b[:min(len(b), 2+int(b[1]))]
	}
	return append([]byte(nil), b...)
}

func (v *socksHandshake) methods() []socks5.Authenticator {
	v.server.Sandboxes.Await(context.Background(), v.Peer)
	check := socks5.UserPassAuthenticator{Credentials: v}
	if v.server.Sandboxes.Credentials(v.Peer) {
		return []socks5.Authenticator{check}
	}
	return []socks5.Authenticator{socks5.NoAuthAuthenticator{}, check}
}

// Valid implements the library's store of credentials (RFC 1929).
func (v *socksHandshake) Valid(user, password, _ string) bool {
	v.Peer.User, v.Peer.Password, v.Peer.HasCredentials = user, password, true
	if _, err := v.server.Sandboxes.Identify(v.Peer); err == nil {
		return true
	}
	v.unknown(sandbox.ErrUnknown)
	delay := v.server.Sandboxes.Failed(v.Peer, time.Now())
	v.Deadline(delay + v.server.forwarder.Limits.Head)
	v.pause(delay)
	return false
}

func (v *socksHandshake) unknown(err error) {
	v.recorded = true
	v.server.Gate.Refuse(v.Peer, policy.ViaSOCKS5, v.greeting, policy.UnknownSandbox, err.Error())
}

// failed records a handshake that the library gave up.
func (v *socksHandshake) failed(err error) {
	if errors.Is(err, statute.ErrNoSupportedAuth) {
		v.unknown(sandbox.ErrUnknown)
		return
	}
	exchange.RefuseMalformed(v.server.Gate, v.Peer, policy.ViaSOCKS5, v.greeting, errors.New("the SOCKS5 handshake is malformed or was not complete in time"))
}

func (v *socksHandshake) unsupported(_ context.Context, w io.Writer, req *socks5.Request) error {
	v.recorded = true
	exchange.RefuseMalformed(v.server.Gate, v.Peer, policy.ViaSOCKS5, req.Bytes(), errSOCKSCommand)
	_, err := w.Write(socksReply(answer.SOCKSCommand))
	return err
}

// connect takes the request. What the client has sent behind it is first bytes of the tunnel.
func (v *socksHandshake) connect(_ context.Context, w io.Writer, req *socks5.Request) error {
	v.recorded = true
	dst, err := socksDestination(&req.DstAddr)
	if req.Reserved != 0 {
		err = errSOCKSReserved
	}
	if err != nil {
		refusal := exchange.RefuseMalformed(v.server.Gate, v.Peer, policy.ViaSOCKS5, req.Bytes(), err)
		_, err = w.Write(socksReplier{}.refusal(refusal))
		return err
	}
	v.asked, v.First = &dst, append(buffered(req.Reader), v.First...)
	return nil
}

// socksDestination goes through the same parser as every other way in.
func socksDestination(a *statute.AddrSpec) (policy.Destination, error) {
	port := ":" + strconv.Itoa(a.Port)
	if a.AddrType == statute.ATYPDomain {
		if strings.Contains(a.FQDN, ":") {
			return policy.ParseDestination("[" + a.FQDN + "]" + port)
		}
		return policy.ParseDestination(a.FQDN + port)
	}
	ip, _ := netip.AddrFromSlice(a.IP)
	if ip = ip.Unmap(); ip.Is4() {
		return policy.ParseDestination(ip.String() + port)
	}
	return policy.ParseDestination("[" + ip.String() + "]" + port)
}

// buffered returns what the client sent behind its request.
func buffered(r io.Reader) []byte {
	br, ok := r.(*bufio.Reader)
	if !ok || br.Buffered() == 0 {
		return nil
	}
	b, _ := br.Peek(br.Buffered())
	return append([]byte(nil), b...)
}
