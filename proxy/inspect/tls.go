package inspect

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
)

const newAuthority = "egressd ca rotate makes a new one, which egressd serve takes at SIGHUP"

// handshakeUpstream makes TLS with the upstream, for the host that was asked for.
// It closes raw where that fails, or ctx is done before.
func (i *tunnel) handshakeUpstream(ctx context.Context, raw net.Conn, protos []string) (*tls.Conn, error) {
	config := &tls.Config{
		ServerName:         i.dst.Host,
		RootCAs:            i.inspection.Roots,
		NextProtos:         protos,
		MinVersion:         tls.VersionTLS12,
		ClientSessionCache: i.inspection.sessionsOf(i.flow.Sandbox()),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			i.certificateAsked.Store(true)
			return new(tls.Certificate), nil
		},
		VerifyConnection: verifyUpstream,
	}
	raw.SetDeadline(time.Now().Add(i.Forwarder.Limits.Hello))
	below := &exchange.UpstreamConn{Conn: raw, Began: time.Now()}
	c := tls.Client(below, config)
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	below.Bound.Over = true
	raw.SetDeadline(time.Time{})
	return c, nil
}

// verifyUpstream refuses what is wrong with an upstream's certificates although they are verified.
func verifyUpstream(state tls.ConnectionState) error {
	if err := longKeys(state); err != nil {
		return err
	}
	return exchange.SmallChain(state)
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
func (i *tunnel) tlsFailed(err error) *egress.Refusal {
	why, final := reasonOf(err), isFinal(err)
	if i.certificateAsked.Load() {
		why, final = wantsCertificate, true
	}
	r := i.flow.Failed(policy.NetworkTLS, why)
	r.Final = final
	return r
}

// isFinal reports whether the upstream's TLS fails until somebody changes its certificates, or which ones are trusted.
func isFinal(err error) bool {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	return errors.Is(err, errShortKey) || errors.As(err, &name) || errors.As(err, &invalid) || errors.As(err, &unknown)
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
	case errors.Is(err, exchange.ErrLongHandshake):
		return "the destination sent " + exchange.ErrLongHandshake.Error()
	case errors.Is(err, exchange.ErrLargeChain):
		return "the destination has " + exchange.ErrLargeChain.Error()
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

// handshakeClient makes TLS with the client, in the protocol that the upstream
// chose. upstream is nil where there is none: then any protocol will do to say
// so.
func (i *tunnel) handshakeClient(leaf *tls.Certificate, upstream *tls.Conn) (*tls.Conn, error) {
	config := &tls.Config{
		Certificates: []tls.Certificate{*leaf},
		NextProtos:   []string{h1, h10},
		MinVersion:   tls.VersionTLS12,
		// The client is on this machine: what is recorded here for later
		// decryption is not worth the keys of ML-KEM, a tenth of a connection.
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384},
		// Another sandbox could use a stolen session ticket for a connection that was decided for this one.
		SessionTicketsDisabled: true,
	}
	switch {
	case upstream == nil && i.flow == nil: // a page alone
	case upstream == nil:
		config.NextProtos = []string{h1, h2, h10}
	case upstream.ConnectionState().NegotiatedProtocol == h2:
		config.NextProtos = []string{h2}
	}
	i.Deadline(i.Forwarder.Limits.Hello)
	c := tls.Server(&exchange.Prefixed{Conn: i.Raw, First: i.First}, config)
	i.First = nil
	if err := c.Handshake(); err != nil {
		return nil, err
	}
	i.Raw.SetDeadline(time.Time{})
	i.proto = c.ConnectionState().NegotiatedProtocol
	return c, nil
}

// clientFailed says how a tunnel ended in which the client did not complete
// its handshake.
func (i *tunnel) clientFailed(err error) egress.End {
	keepOut := "write " + i.dst.Host + " under tls.never and allow it whole"
	fix := "give the sandbox the certificates of egressd ca bundle, or, where it pins its own, " + keepOut
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "remote error": // an alert from the client
		return egress.End{Outcome: record.Outcome(policy.CertificateRefused), Note: "the client answered the certificate with \"" + op.Err.Error() + "\"; " + fix}
	case i.broken != nil:
		return egress.End{Outcome: record.Outcome(i.broken.Decision.Class), Note: i.broken.Decision.Reason}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return egress.End{Outcome: record.OutcomeFirstBytesLate, Note: "the client did not complete its TLS handshake in time"}
	case !leftEarly(err):
		return egress.End{Outcome: record.Outcome(policy.NetworkTLS), Note: "the client and inspection have no version of TLS, or no protocol in it, in common; " + keepOut}
	}
	return egress.End{Outcome: record.Outcome(policy.CertificateRefused), Note: "the client left in the TLS handshake, as programs do that do not trust the certificate; " + fix}
}

// leftEarly reports whether a handshake failed because its other end went.
func leftEarly(err error) bool {
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}
