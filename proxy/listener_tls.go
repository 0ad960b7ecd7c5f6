package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/sandbox"
)

// A TLSListener is what clients of a listener of TLS are shown, and have to
// show. It is not changed once the server has it.
type TLSListener struct {
	Authority *certs.Authority // of the certificate that clients see
	Names     []string         // that it may be for, beside the address that the client came to
	Clients   *x509.CertPool   // authorities of the certificates that clients need; nil means they need none
}

// Handshakes that are under way at a time, over all listeners, and of one
// address: another's are not to wait for those that somebody leaves hanging.
const (
	handshakesMost     = 512
	handshakesOfSource = 64
)

// ServeTLS accepts TLS from l, which the server owns from now on, until
// Shutdown; what is inside is served as by [Server.Serve]. now is asked for
// each connection, and is safe for concurrent use.
func (s *Server) ServeTLS(l net.Listener, name string, now func() *TLSListener) error {
	return (&listener{Listener: l, server: s, name: name, tls: now}).serve()
}

// handshakeSource is what handshakes are counted by: one that has an IPv6 address has a
// whole network of them.
func handshakeSource(p sandbox.Peer) netip.Addr {
	addr := p.Addr.Addr()
	if addr.Is6() {
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}

// registerHandshake counts a handshake, unless too many of its address are under way.
func (s *Server) registerHandshake(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := handshakeSource(c.came)
	if s.stopping || len(s.handshakes[from]) >= handshakesOfSource {
		return false
	}
	s.handshakes[from] = append(s.handshakes[from], c)
	s.evictHandshake()
	return true
}

// evictHandshake breaks off one handshake if there are too many: the oldest one of the address with the most.
// One host may have enough addresses to take every handshake, and may not keep other hosts out. s.mu is held.
func (s *Server) evictHandshake() {
	all := 0
	var busiest netip.Addr
	for from, under := range s.handshakes {
		all += len(under)
		if len(under) > len(s.handshakes[busiest]) {
			busiest = from
		}
	}
	if all > handshakesMost {
		oldest := s.handshakes[busiest][0]
		s.removeHandshake(busiest, oldest)
		oldest.socket.Close()
	}
}

// handshakeDone notes the end of a handshake.
func (s *Server) handshakeDone(c *conn) {
	if c.listener.tls == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeHandshake(handshakeSource(c.came), c)
}

// removeHandshake takes c from the handshakes under way, where it is among them. It is called
// with mu held.
func (s *Server) removeHandshake(from netip.Addr, c *conn) {
	left := slices.DeleteFunc(s.handshakes[from], func(other *conn) bool { return other == c })
	if s.handshakes[from] = left; len(left) == 0 {
		delete(s.handshakes, from)
	}
}

// shakeHands makes TLS with the client of a TLS listener. What is inside is served like any other connection.
func (c *conn) shakeHands() bool {
	s, with := c.server, c.listener.tls()
	transport := &handshakeConn{Conn: c.Raw}
	inner := tls.Server(transport, with.config())
	if !c.patience(s.forwarder.Limits.Hello) {
		s.handshakeDone(c)
		return false
	}
	err := inner.Handshake()
	transport.bound.Over = true
	s.handshakeDone(c)
	switch {
	case c.isEvicted():
		return false
	case err != nil && !transport.spoke: // as with other listeners, one that says nothing leaves no trace
		return false
	case err != nil:
		class, why := handshakeFailed(err, with)
		c.refused = true
		s.Gate.Refuse(c.came, policy.ViaUnknown, nil, class, why)
		return false
	}
	secure := &tlsConn{Conn: inner, transport: transport}
	if own := inner.ConnectionState().PeerCertificates; len(own) > 0 {
		c.Peer.Certificate = sandbox.CertificateNames(own[0])
		h := s.Sandboxes.Holder(&c.Peer)
		if !s.connections.Move(&c.admission, h.Sandbox, h) {
			c.refused = true
			s.refuseOneMore(c.Peer)
			return false
		}
	}
	c.Raw, c.Conn = secure, secure
	return c.patience(0)
}

// A tlsConn is the inside of a connection of a TLS listener.
type tlsConn struct {
	*tls.Conn
	transport *handshakeConn
	broken    atomic.Bool // it is to end without close_notify
}

// Read implements [net.Conn]. If a client closes without close_notify (RFC 8446 §6.1), data may be
// missing, so Read returns an error instead of io.EOF.
func (c *tlsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) && c.transport.closed {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// SyscallConn is of the socket below, for a look at whether the client has left.
func (c *tlsConn) SyscallConn() (syscall.RawConn, error) {
	return c.transport.Conn.(syscall.Conn).SyscallConn()
}

// SetLinger is what a connection is broken off with.
func (c *tlsConn) SetLinger(seconds int) error {
	c.broken.Store(true)
	if tcp, ok := c.transport.Conn.(*net.TCPConn); ok {
		return tcp.SetLinger(seconds)
	}
	return nil
}

// Close leaves the client a moment to take the end of what it was sent, unless the connection was broken off.
func (c *tlsConn) Close() error {
	if c.broken.Load() {
		return c.transport.Close()
	}
	return c.Conn.Close()
}

func handshakeFailed(err error, with *TLSListener) (policy.Class, string) {
	const most = 200
	why := "TLS handshake: " + err.Error()
	why = why[:min(len(why), most)]
	var record tls.RecordHeaderError
	var network net.Error
	var op *net.OpError
	switch {
	case errors.Is(err, net.ErrClosed):
		return policy.TooManyFlows, "too many TLS handshakes are under way, and many of this address"
	case errors.As(err, &record), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return policy.MalformedRequest, why
	case errors.As(err, &op) && op.Op == "remote error": // an alert from the client
		return policy.CertificateRefused, why
	case errors.As(err, &network), with.Clients == nil:
		return policy.MalformedRequest, why
	}
	return policy.UnknownSandbox, why
}

// config is for one connection. There are no tickets: who comes back shows
// again who it is.
func (l *TLSListener) config() *tls.Config {
	c := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"http/1.1"},
		SessionTicketsDisabled: true,
		GetCertificate:         l.certificate,
	}
	if l.Clients != nil {
		c.ClientAuth, c.ClientCAs, c.VerifyConnection = tls.RequireAndVerifyClientCert, l.Clients, exchange.SmallChain
	}
	return c
}

// certificate returns the leaf for the name that the client asks for, if that name is one of the listener's.
// For any other name it returns the leaf for the local address, so that the client sees that it is in the
// wrong place.
func (l *TLSListener) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if name, err := policy.ParseName(hello.ServerName); err == nil && slices.Contains(l.Names, name) {
		return l.Authority.Leaf(name)
	}
	at, ok := hello.Conn.LocalAddr().(*net.TCPAddr)
	if !ok {
		return nil, errors.New("not a TCP listener")
	}
	return l.Authority.Leaf(at.AddrPort().Addr().Unmap().WithZone("").String())
}

// A handshakeConn notes whether the client has sent a byte and whether it has closed. crypto/tls takes a close
// without close_notify for an orderly end.
type handshakeConn struct {
	net.Conn
	spoke, closed bool // for who reads
	bound         exchange.HandshakeBound
}

func (c *handshakeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.spoke = c.spoke || n > 0
	c.closed = c.closed || errors.Is(err, io.EOF)
	if long := c.bound.Came(n); long != nil {
		return 0, long
	}
	return n, err
}
