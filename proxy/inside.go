package proxy

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// An Inspection is what a [Server] looks inside TLS with. It is not changed
// once the server has it.
type Inspection struct {
	Authority *certs.Authority // of the certificates that clients see
	Roots     *x509.CertPool   // that upstream certificates are verified against; nil means the system's

	// Credential returns what the rule of that name adds to a request for dst,
	// by the policy with that digest, or nil where it cannot be had. It is safe
	// for concurrent use and does not wait.
	Credential func(rule, digest string, dst policy.Destination) *secret.Secret
}

// Inspect gives the server what it inspects with, for tunnels that begin from
// now on. Until it was called, and after nil, tunnels that would have to be
// inspected are closed. It is safe for concurrent use.
func (s *Server) Inspect(i *Inspection) {
	if i == nil {
		s.inspection.Store(nil)
		return
	}
	s.inspection.Store(&inspection{Inspection: *i, sessions: map[string]tls.ClientSessionCache{}})
}

// inspection is an Inspection and the TLS sessions that were made with it.
type inspection struct {
	Inspection
	mu       sync.Mutex
	sessions map[string]tls.ClientSessionCache // with upstreams, by sandbox
}

const (
	sessionsPerSandbox = 256
	sessionsSandboxes  = 256 // whose sessions are kept; with one more all are forgotten
)

// sessionsOf returns the sessions of one sandbox: another must not be known to
// an upstream by them.
func (i *inspection) sessionsOf(sandbox string) tls.ClientSessionCache {
	i.mu.Lock()
	defer i.mu.Unlock()
	cache := i.sessions[sandbox]
	if cache == nil {
		if len(i.sessions) >= sessionsSandboxes {
			clear(i.sessions)
		}
		cache = tls.NewLRUClientSessionCache(sessionsPerSandbox)
		i.sessions[sandbox] = cache
	}
	return cache
}

// An inside is an inspected tunnel: the client's TLS ends here, and another
// begins towards the upstream. Its requests are flows of their own.
type inside struct {
	*hosted
	with   *inspection
	flow   *egress.Flow
	dst    policy.Destination
	protos []string        // that the client offered and that can be served
	proto  string          // that both sides speak
	broken *egress.Refusal // what is answered to every request where the upstream could not be had
	asked  atomic.Bool     // the upstream asked for a client certificate

	mu        sync.Mutex // guards what follows
	far       net.Conn   // the connection to the upstream, below TLS
	brokenOff string     // the outcome, once both connections were broken off
}

// The ALPN identifiers of HTTP/2 (RFC 9113 §3.1), HTTP/1.1 and HTTP/1.0. The
// last is agreed on with clients alone, that offer nothing better.
const (
	h2  = "h2"
	h1  = "http/1.1"
	h10 = "http/1.0"
)

// serveInside serves an inspected tunnel whose first bytes h holds.
func (s *Server) serveInside(h *hosted, flow *egress.Flow, far net.Conn, offered []string) {
	i := &inside{hosted: h, with: s.inspection.Load(), flow: flow, dst: *h.within, far: far}
	for _, p := range offered {
		if p == h2 || p == h1 {
			i.protos = append(i.protos, p)
		}
	}
	flow.OnCut(i.cut)
	tooOld := time.AfterFunc(s.limits.Lifetime, func() { i.breakOff(string(relay.TooOld)) })
	end := i.serve()
	tooOld.Stop()
	i.closeFar()
	end.Outcome = i.outcome(end.Outcome)
	flow.Close(end)
}

// cut breaks both connections off for a policy that refuses what is in them.
func (i *inside) cut() { i.breakOff("cut") }

// breakOff breaks both connections off. The first one says what the tunnel is
// recorded to have ended with.
func (i *inside) breakOff(outcome string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.brokenOff == "" {
		i.brokenOff = outcome
	}
	abort(i.raw)
	abort(i.far)
}

// outcome is how the tunnel ended: by itself, or broken off.
func (i *inside) outcome(byItself string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.brokenOff != "" {
		return i.brokenOff
	}
	return byItself
}

func (i *inside) closeFar() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.far.Close()
}

// serve makes both handshakes, the upstream's first, so that the client is
// shown a certificate only for what there is, and learns what went wrong.
func (i *inside) serve() egress.End {
	if i.with == nil {
		return egress.End{Outcome: string(policy.PolicyError), Note: "nothing to inspect with"}
	}
	if err := i.flow.Wait(context.Background()); err != nil {
		return egress.End{Outcome: string(asRefusal(err).Decision.Class)}
	}
	leaf, err := i.with.Authority.Leaf(i.dst.Host)
	if err != nil {
		return egress.End{Outcome: string(policy.PolicyError), Note: "the local authority cannot sign: " + err.Error() + "; " + newAuthority}
	}
	end := egress.End{Outcome: "closed"}
	upstream, err := i.handshakeFar(context.Background(), i.far, i.protos)
	if err != nil {
		i.broken = i.tlsFailed(err)
		end = egress.End{Outcome: string(policy.NetworkTLS), Note: i.broken.Decision.Reason}
	}
	client, err := i.handshakeNear(leaf, upstream)
	if err != nil {
		return i.clientFailed(err)
	}
	i.client = client
	if i.proto == h2 {
		i.server.serveH2(i, client, upstream)
	} else {
		i.server.serveH1(i.hosted, i, upstream)
	}
	if i.broken != nil { // maybe only since HTTP/2 was to begin
		end = egress.End{Outcome: string(policy.NetworkTLS), Note: i.broken.Decision.Reason}
	}
	return end
}

const newAuthority = "egressd ca rotate makes a new one, which egressd serve takes at SIGHUP"

// handshakeFar makes TLS with the upstream, for the host that was asked for.
// It closes raw where that fails, or ctx is done before.
func (i *inside) handshakeFar(ctx context.Context, raw net.Conn, protos []string) (*tls.Conn, error) {
	config := &tls.Config{
		ServerName:         i.dst.Host,
		RootCAs:            i.with.Roots,
		NextProtos:         protos,
		MinVersion:         tls.VersionTLS12,
		ClientSessionCache: i.with.sessionsOf(i.flow.Sandbox()),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			i.asked.Store(true)
			return new(tls.Certificate), nil
		},
		VerifyConnection: longKeys,
	}
	raw.SetDeadline(time.Now().Add(i.server.limits.Hello))
	c := tls.Client(&farConn{Conn: raw}, config)
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	raw.SetDeadline(time.Time{})
	return c, nil
}

// longKeys refuses chains with an RSA key that can be broken.
func longKeys(state tls.ConnectionState) error {
	const least = 2048
	for _, chain := range state.VerifiedChains {
		for _, cert := range chain {
			if key, ok := cert.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() < least {
				return errShortKey
			}
		}
	}
	return nil
}

var (
	errShortKey      = errors.New("the destination's certificate, or one that vouches for it, has an RSA key of less than 2048 bits")
	errOtherProtocol = errors.New("the destination no longer speaks the protocol that was agreed on")
)

// tlsFailed is the refusal to show where the upstream's TLS failed, in its
// handshake or, with TLS 1.3 and a certificate that it missed, after it.
func (i *inside) tlsFailed(err error) *egress.Refusal {
	why := reasonOf(err)
	if i.asked.Load() {
		why = wantsCertificate
	}
	return i.flow.Failed(policy.NetworkTLS, why)
}

const wantsCertificate = "the destination broke off after it asked for a client certificate, which inspection cannot pass on; write the host under tls.never and allow it whole"

// reasonOf says what is wrong with an upstream's TLS, without its own words.
func reasonOf(err error) string {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var timeout net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errShortKey):
		return errShortKey.Error()
	case errors.Is(err, errOtherProtocol):
		return errOtherProtocol.Error()
	case errors.As(err, &name):
		return "the destination's certificate is for another host"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the destination's certificate has expired or is not valid yet"
	case errors.As(err, &invalid):
		return "the destination's certificate is not valid"
	case errors.As(err, &unknown):
		return "the destination's certificate comes from an authority that is not trusted; if it is to be, name its file under tls.extra_roots"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "the destination did not complete its TLS handshake in time"
	}
	return "the destination's TLS handshake failed"
}

// handshakeNear makes TLS with the client, in the protocol that the upstream
// chose. upstream is nil where there is none: then any protocol will do to say
// so.
func (i *inside) handshakeNear(leaf *tls.Certificate, upstream *tls.Conn) (*tls.Conn, error) {
	config := &tls.Config{
		Certificates: []tls.Certificate{*leaf},
		NextProtos:   []string{h1, h10},
		MinVersion:   tls.VersionTLS12,
		// The client is on this machine: what is recorded here for later
		// decryption is not worth the keys of ML-KEM, a tenth of a connection.
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384},
		// A ticket could be used by whoever gets hold of it, for a connection
		// that was decided for somebody else.
		SessionTicketsDisabled: true,
	}
	switch {
	case upstream == nil && i.flow == nil: // a page alone
	case upstream == nil:
		config.NextProtos = []string{h1, h2, h10}
	case upstream.ConnectionState().NegotiatedProtocol == h2:
		config.NextProtos = []string{h2}
	}
	i.deadline(i.server.limits.Hello)
	c := tls.Server(&prefixed{i.raw, i.first}, config)
	i.first = nil
	if err := c.Handshake(); err != nil {
		return nil, err
	}
	i.raw.SetDeadline(time.Time{})
	i.proto = c.ConnectionState().NegotiatedProtocol
	return c, nil
}

// clientFailed says how a tunnel ended in which the client did not complete
// its handshake.
func (i *inside) clientFailed(err error) egress.End {
	keepOut := "write " + i.dst.Host + " under tls.never and allow it whole"
	fix := "give the sandbox the certificates of egressd ca bundle, or, where it pins its own, " + keepOut
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "remote error": // an alert from the client
		return egress.End{Outcome: string(policy.CertificateRefused), Note: "the client answered the certificate with \"" + op.Err.Error() + "\"; " + fix}
	case i.broken != nil:
		return egress.End{Outcome: string(policy.NetworkTLS), Note: i.broken.Decision.Reason}
	case !leftEarly(err):
		return egress.End{Outcome: string(policy.NetworkTLS), Note: "the client and inspection have no version of TLS, or no protocol in it, in common; " + keepOut}
	}
	return egress.End{Outcome: string(policy.CertificateRefused), Note: "the client left in the TLS handshake, as programs do that do not trust the certificate; " + fix}
}

// leftEarly reports whether a handshake failed because its other end went or
// said nothing.
func leftEarly(err error) bool {
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// again connects to the upstream once more, for a next request: it closes its
// connections sooner than clients do theirs. The error is a [*egress.Refusal].
func (i *inside) again(ctx context.Context) (*tls.Conn, error) {
	raw, err := i.flow.Dial(ctx)
	if err != nil {
		return nil, err
	}
	i.flow.Keep() // it ends with the tunnel, and maybe after the next one is dialled
	if !i.replaceFar(raw) {
		return nil, i.flow.Failed(policy.NetworkTLS, "")
	}
	var protos []string
	if i.proto == h2 || i.proto == h1 {
		protos = []string{i.proto}
	}
	c, err := i.handshakeFar(ctx, raw, protos)
	if err == nil && i.proto == h2 && c.ConnectionState().NegotiatedProtocol != h2 {
		err = errOtherProtocol
	}
	if err != nil {
		return nil, i.tlsFailed(err)
	}
	return c, nil
}

// replaceFar makes raw the connection to the upstream. The one before is
// closed, but for HTTP/2, where streams may still be under way on it.
func (i *inside) replaceFar(raw net.Conn) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.brokenOff != "" {
		raw.Close()
		return false
	}
	if i.proto != h2 {
		i.far.Close()
	}
	i.far = raw
	return true
}

// authority is what a request inside the tunnel names as its server, for the
// policy to compare: canonical, or what no destination equals.
func authority(host string) string {
	dst, err := policy.ParseDestination(host)
	if err != nil {
		dst, err = policy.ParseDestination(host + ":443")
	}
	if err != nil {
		return noAuthority
	}
	return dst.String()
}

const noAuthority = "-"

// answerInside is the answer to a refused request inside a tunnel. A request
// for another server than the tunnel's is misdirected (RFC 9110 §15.5.20).
func answerInside(class policy.Class) answer {
	if class == policy.NameMismatch {
		return answer{status: 421}
	}
	return answerTo(class)
}

// A farConn is the connection below the TLS with an upstream. While it is
// hasty, reads do not wait for bytes.
type farConn struct {
	net.Conn
	hasty bool // only changed while nobody reads
	ended bool // the upstream has closed it; for who reads
}

func (c *farConn) Read(b []byte) (int, error) {
	if c.hasty {
		return readNow(c.Conn, b)
	}
	n, err := c.Conn.Read(b)
	c.ended = errors.Is(err, io.EOF)
	return n, err
}

// A prefixed is a connection with what was read of it put back in front.
type prefixed struct {
	net.Conn
	first []byte
}

func (c *prefixed) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}
