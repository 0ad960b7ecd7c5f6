package proxy

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/record"
)

// onlyCertificate has a server show cert.
func onlyCertificate(cert tls.Certificate) func(*tls.Config) {
	return func(c *tls.Config) { c.Certificates = []tls.Certificate{cert} }
}

// badUpstreams are servers that no TLS client should talk to, and what is said
// of them.
func badUpstreams(t *testing.T, p *pki) map[string]struct {
	change func(*tls.Config)
	why    string
} {
	now := time.Now()
	leaf := func(change func(*x509.Certificate), names ...string) func(*tls.Config) {
		return onlyCertificate(p.Server(t, change, names...))
	}
	unknown := newPKI(t)
	return map[string]struct {
		change func(*tls.Config)
		why    string
	}{
		"expired":          {leaf(func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }, "allowed.test"), "has expired or is not valid yet"},
		"not valid yet":    {leaf(func(c *x509.Certificate) { c.NotBefore = now.Add(30 * time.Minute) }, "allowed.test"), "has expired or is not valid yet"},
		"another host":     {leaf(nil, "other.test"), "is for another host"},
		"no name at all":   {leaf(nil), "is for another host"},
		"for clients only": {leaf(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "allowed.test"), "is not valid"},
		"unknown":          {onlyCertificate(unknown.Server(t, nil, "allowed.test")), "from an authority that is not trusted"},
		"self-signed":      {onlyCertificate(testpki.SelfSigned(t, func(c *x509.Certificate) { c.DNSNames = []string{"allowed.test"} })), "from an authority that is not trusted"},
		"a short RSA key":  {onlyCertificate(shortRSA(t, p)), "RSA key of less than 2048 bits"},
		"a heavy chain":    {onlyCertificate(p.with(t, testpki.Heavy(t, 15_000, testpki.UnknownUse))), "certificates that take more than 256 KiB of memory"},
		"a long handshake": {onlyCertificate(p.with(t, testpki.Heavy(t, 30_000, testpki.UnknownUse))), "a TLS handshake of more than 64 KiB"},
		"TLS 1.1 at most":  {func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, "TLS handshake failed"},
		"TLS 1.2, and a client certificate": {func(c *tls.Config) {
			c.ClientAuth, c.MaxVersion = tls.RequireAnyClientCert, tls.VersionTLS12
		}, "asked for a client certificate"},
		"TLS 1.3, and a client certificate": {func(c *tls.Config) {
			c.ClientAuth, c.MinVersion = tls.RequireAnyClientCert, tls.VersionTLS13
		}, "asked for a client certificate"},
	}
}

// with is a good certificate for allowed.test with another one in its chain.
func (p *pki) with(t *testing.T, other []byte) tls.Certificate {
	leaf := p.Server(t, nil, "allowed.test")
	leaf.Certificate = append(leaf.Certificate, other)
	return leaf
}

func shortRSA(t *testing.T, p *pki) tls.Certificate {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return p.Sign(t, &x509.Certificate{SerialNumber: big.NewInt(4), DNSNames: []string{"allowed.test"}, NotAfter: time.Now().Add(time.Hour)}, key)
}

// TestABadUpstreamIsExplained: the client's TLS stands, and what it reads in it
// says what is wrong.
func TestABadUpstreamIsExplained(t *testing.T) {
	shared := newPKI(t)
	for name, tt := range badUpstreams(t, shared) {
		t.Run(name, func(t *testing.T) {
			eachVersion(t, func(t *testing.T, overH2 bool) {
				w := newInspectWorld(t, inspectPolicy, func(with *inspect.Inspection) { with.Roots = shared.Pool }) // its own: ports come again
				w.pki = shared
				o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s went up", r.RequestURI) }, tt.change)
				protos := []string{"http/1.1"}
				if overH2 {
					protos = []string{"h2"}
				}
				r := ask(t, over(t, w.tunnel(t, "allowed.test", o.port, protos...)), "GET", o.url("allowed.test", "/public/x"), nil)
				r.refused(t, 502, policy.NetworkTLS)
				if !strings.Contains(r.Header.Get("Proxy-Status"), "network-tls") {
					t.Errorf("answered %s", r.all())
				}
				end := w.recorded(t, func(r record.Record) bool {
					return r.Kind == record.KindClose && r.Outcome == "network-tls" && portOf(r) == o.port
				})
				if end.Note != "" && !strings.Contains(end.Note, tt.why) {
					t.Errorf("noted %q, want %q", end.Note, tt.why)
				}
				if end.Note == "" && !strings.Contains(tt.why, "client certificate") {
					t.Errorf("nothing noted, want %q", tt.why)
				}
			})
		})
	}
}

func portOf(r record.Record) string {
	if r.Dst == nil {
		return ""
	}
	return strconv.Itoa(int(r.Dst.Port))
}

// TestAnOptionalClientCertificateIsNotMissed by an upstream that asks for one.
func TestAnOptionalClientCertificateIsNotMissed(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		eachVersion(t, func(t *testing.T, overH2 bool) {
			w := newInspectWorld(t, inspectPolicy, nil)
			o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "fine") }, func(c *tls.Config) {
				c.ClientAuth, c.MinVersion, c.MaxVersion = tls.RequestClientCert, version, version
			})
			if r := ask(t, w.visitor(t, overH2, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/x"), nil); r.body != "fine" {
				t.Errorf("%x: %s", version, r.all())
			}
		})
	}
}

// TestAnUpstreamWithoutTLSIsExplained has it hang, reset, close, or speak
// something else.
func TestAnUpstreamWithoutTLSIsExplained(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		serve func(net.Conn)
		why   string
	}{
		"hangs":       {func(c net.Conn) { io.Copy(io.Discard, c) }, "did not complete its TLS handshake in time"},
		"resets":      {func(c net.Conn) { c.Read(make([]byte, 16)); exchange.Abort(c) }, "TLS handshake failed"},
		"closes":      {func(c net.Conn) { c.Read(make([]byte, 16)) }, "TLS handshake failed"},
		"speaks HTTP": {func(c net.Conn) { c.Read(make([]byte, 4096)); io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n") }, "TLS handshake failed"},
	} {
		t.Run(name, func(t *testing.T) {
			limits := Limits{}
			if name == "hangs" {
				limits.Hello = time.Second
			}
			w := newLimitedWorld(t, inspectPolicy, limits, nil)
			o := newOrigin(t, tt.serve)
			c := w.inside(t, "allowed.test", o.port)
			c.send(insideGet("allowed.test", o.port, "/public/x"))
			resp, body := c.response("GET")
			reply{resp, body}.refused(t, 502, policy.NetworkTLS)
			c.Close()
			if end := w.recorded(t, ended("network-tls")); !strings.Contains(end.Note, tt.why) {
				t.Errorf("noted %q, want %q", end.Note, tt.why)
			}
			w.closed(t)
		})
	}
}

// TestAClientThatRefusesOurCertificate says so with an alert, or leaves.
func TestAClientThatRefusesOurCertificate(t *testing.T) {
	for name, leave := range map[string]func(*testClient) error{
		"with an alert": func(c *testClient) error {
			return tls.Client(c.Conn, &tls.Config{ServerName: "allowed.test", RootCAs: x509.NewCertPool()}).Handshake()
		},
		"by leaving": func(c *testClient) error {
			silent := &tls.Config{ServerName: "allowed.test", InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error {
				c.Close() // before any alert
				return errors.New("not trusted")
			}}
			return tls.Client(c.Conn, silent).Handshake()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newInspectWorld(t, inspectPolicy, nil)
			o := w.pki.secureOrigin(t, false, func(http.ResponseWriter, *http.Request) { t.Error("a request went up") }, nil)
			c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
			if leave(c) == nil {
				t.Fatal("the client trusted it")
			}
			c.Close()
			end := w.recorded(t, ended(string(policy.CertificateRefused)))
			if !strings.Contains(end.Note, "write allowed.test under tls.never") {
				t.Errorf("noted %q", end.Note)
			}
			w.closed(t)
		})
	}
}

// TestALPNIsMirrored: what both ends can speak is spoken, and nothing else.
func TestALPNIsMirrored(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	handle := func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Proto) }
	new, old := w.pki.secureOrigin(t, true, handle, nil), w.pki.secureOrigin(t, false, handle, nil)
	for _, tt := range []struct {
		name  string
		o     *origin
		offer []string
		got   string
		proto string
	}{
		{"both know HTTP/2", new, []string{"h2", "http/1.1"}, "h2", "HTTP/2.0"},
		{"the client does not", new, []string{"http/1.1"}, "http/1.1", "HTTP/1.1"},
		{"the client offers nothing", new, nil, "", "HTTP/1.1"},
		{"the upstream does not", old, []string{"h2", "http/1.1"}, "http/1.1", "HTTP/1.1"},
		{"unknown ones beside", new, []string{"spdy/3", "h2", "foo"}, "h2", "HTTP/2.0"},
	} {
		c := w.tunnel(t, "allowed.test", tt.o.port, tt.offer...)
		if got := c.ConnectionState().NegotiatedProtocol; got != tt.got {
			t.Errorf("%s: negotiated %q, want %q", tt.name, got, tt.got)
			continue
		}
		if r := ask(t, over(t, c), "GET", tt.o.url("allowed.test", "/public/x"), nil); r.body != tt.proto {
			t.Errorf("%s: the upstream was asked in %s", tt.name, r.body)
		}
	}
}

// TestNoProtocolInCommon: a client with unknown protocols only cannot be
// served, and that is no matter of trust.
func TestNoProtocolInCommon(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, false, func(http.ResponseWriter, *http.Request) { t.Error("a request went up") }, nil)
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
	err := tls.Client(c.Conn, &tls.Config{ServerName: "allowed.test", RootCAs: w.pool, NextProtos: []string{"spdy/3", "foo"}}).Handshake()
	if err == nil {
		t.Fatal("the handshake succeeded")
	}
	c.Close()
	if end := w.recorded(t, ended("network-tls")); !strings.Contains(end.Note, "in common") || !strings.Contains(end.Note, "tls.never") {
		t.Errorf("noted %q", end.Note)
	}
	w.closed(t)
}

// TestALeafIsForTheHost that was asked for.
func TestALeafIsForTheHost(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, false, func(http.ResponseWriter, *http.Request) {}, nil)
	leaf := w.tunnel(t, "allowed.test", o.port).ConnectionState().PeerCertificates[0]
	if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != "allowed.test" || bytes.Equal(leaf.Raw, w.pki.Certificate.Raw) {
		t.Errorf("shown %v", leaf.DNSNames)
	}
}
