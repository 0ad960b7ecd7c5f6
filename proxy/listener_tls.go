package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
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
	defer l.Close()
	s.start.Do(s.prepare)
	if s.startErr != nil {
		return s.startErr
	}
	if !s.registerAccepting(l) {
		return ErrClosed
	}
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			s.serveTLSClient(c, name, now())
		case errors.Is(err, net.ErrClosed):
			return ErrClosed
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			s.forwarder.Pause(100 * time.Millisecond) // what waits in the kernel stays there
		case errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EINTR):
		default:
			return err
		}
	}
}

func (s *Server) registerAccepting(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepting = append(s.accepting, l)
	return !s.stopping
}

// serveTLSClient serves one connection of a TLS listener on a goroutine of its own.
func (s *Server) serveTLSClient(c net.Conn, name string, with *TLSListener) {
	f := &tlsClient{server: s, raw: c}
	peer := sandbox.Peer{Listener: name}
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		addr := tcp.AddrPort()
		peer.Addr = netip.AddrPortFrom(addr.Addr().Unmap().WithZone(""), addr.Port())
	}
	if !s.registerTLSClient(f, &peer) {
		s.Gate.Refuse(peer, policy.ViaUnknown, nil, policy.TooManyFlows, "too many TLS connections, or handshakes of this address, are under way")
		forward.Abort(c)
		return
	}
	go func() {
		defer s.forgetTLSClient(f)
		f.serve(peer, with)
	}()
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

func (s *Server) registerTLSClient(f *tlsClient, p *sandbox.Peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := handshakeSource(*p)
	if s.stopping || len(s.handshakes[from]) >= handshakesOfSource {
		return false
	}
	var ok bool
	if f.holder, ok = s.tlsConnections.reserve(s.Sandboxes.Holder(p)); !ok {
		return false
	}
	s.handshakes[from] = append(s.handshakes[from], f)
	s.evictHandshake()
	s.tlsClients[f] = struct{}{}
	s.tlsServing.Add(1)
	f.loop = s.loops[len(s.tlsClients)%len(s.loops)]
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
		forward.Abort(oldest.raw)
	}
}

// handshakeDone notes the end of a handshake.
func (s *Server) handshakeDone(from netip.Addr, f *tlsClient) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeHandshake(from, f)
}

// removeHandshake takes f from the handshakes under way, where it is among them. It is called
// with mu held.
func (s *Server) removeHandshake(from netip.Addr, f *tlsClient) {
	left := slices.DeleteFunc(s.handshakes[from], func(other *tlsClient) bool { return other == f })
	if s.handshakes[from] = left; len(left) == 0 {
		delete(s.handshakes, from)
	}
}

func (s *Server) forgetTLSClient(f *tlsClient) {
	f.raw.Close()
	s.mu.Lock()
	delete(s.tlsClients, f)
	s.tlsConnections.releaseHeld(f.holder)
	s.mu.Unlock()
	s.tlsServing.Done()
}

// closeTLSClients ends the clients of TLS listeners, whose inner connections are closed already.
func (s *Server) closeTLSClients() {
	s.mu.Lock()
	for f := range s.tlsClients {
		f.stopReading(time.Second)
	}
	s.mu.Unlock()
	s.tlsServing.Wait()
}

// serve makes TLS with the client, and serves what is inside.
func (f *tlsClient) serve(p sandbox.Peer, with *TLSListener) {
	s := f.server
	f.transport = &handshakeConn{Conn: f.raw}
	f.tls = tls.Server(f.transport, with.config())
	f.raw.SetDeadline(time.Now().Add(s.forwarder.Limits.Hello))
	err := f.tls.Handshake()
	f.transport.bound.Over = true
	s.handshakeDone(handshakeSource(p), f)
	switch {
	case err != nil && !f.transport.spoke: // as with other listeners, one that says nothing leaves no trace
		return
	case err != nil:
		class, why := handshakeFailed(err, with)
		s.Gate.Refuse(p, policy.ViaUnknown, nil, class, why)
		return
	}
	if own := f.tls.ConnectionState().PeerCertificates; len(own) > 0 {
		p.Certificate = sandbox.CertificateNames(own[0])
		var ok bool
		if f.holder, ok = s.tlsConnections.move(f.holder, s.Sandboxes.Holder(&p)); !ok {
			s.refuseOneMore(p)
			return
		}
	}
	f.raw.SetDeadline(time.Time{})
	if f.joinLoop(p) == nil {
		f.pump()
		f.linger()
	}
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

// linger leaves the client a moment to take the end of what it was sent: to
// close before it has ended its side could overtake that by a reset.
func (f *tlsClient) linger() {
	tcp, ok := f.raw.(*net.TCPConn)
	if !ok || f.ending.Load() != orderly || tcp.CloseWrite() != nil {
		return
	}
	const moment = time.Second
	tcp.SetReadDeadline(time.Now().Add(moment))
	io.CopyN(io.Discard, tcp, 1<<20)
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
		c.ClientAuth, c.ClientCAs, c.VerifyConnection = tls.RequireAndVerifyClientCert, l.Clients, forward.SmallChain
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
	bound         forward.HandshakeBound
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
