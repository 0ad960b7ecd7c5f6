package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/record"
	"golang.org/x/net/http2"
)

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

const inspectPolicy = `version: 1
allow:
  - {host: "allowed.test:*", methods: [GET, POST], paths: ["/public/**"], id: public}
  - {host: "other.test:*", methods: [GET]}
  - "opaque.test:*"
unsafe_allow: ["127.0.0.1:*"]
`

// A pki is the authority that origins in tests have their certificates from.
type pki struct{ *testpki.Authority }

func newPKI(t testing.TB) *pki { return &pki{testpki.New(t)} }

var testNames = []string{"allowed.test", "other.test", "opaque.test"}

// secureOrigin serves handle over TLS, in HTTP/2 where h2 is true.
func (p *pki) secureOrigin(t testing.TB, overH2 bool, handle http.HandlerFunc, change func(*tls.Config)) *origin {
	t.Helper()
	return p.serveOrigin(t, httptest.NewUnstartedServer(handle), overH2, change)
}

func (p *pki) serveOrigin(t testing.TB, s *httptest.Server, overH2 bool, change func(*tls.Config)) *origin {
	t.Helper()
	s.EnableHTTP2 = overH2
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{p.Server(t, nil, testNames...)}}
	if change != nil {
		change(s.TLS)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return &origin{port: port}
}

// An inspectWorld is a world that inspects.
type inspectWorld struct {
	*world
	pki  *pki
	pool *x509.CertPool // what its clients trust
}

func newInspectWorld(t testing.TB, text string, change func(*inspect.Inspection)) *inspectWorld {
	t.Helper()
	return newLimitedWorld(t, text, Limits{}, change)
}

func newLimitedWorld(t testing.TB, text string, limits Limits, change func(*inspect.Inspection)) *inspectWorld {
	t.Helper()
	return newServedWorld(t, text, func(s *Server) { s.Limits = limits }, change)
}

func newServedWorld(t testing.TB, text string, serve func(*Server), change func(*inspect.Inspection)) *inspectWorld {
	t.Helper()
	authority, err := certs.Create(t.TempDir() + "/ca")
	if err != nil {
		t.Fatal(err)
	}
	w := &inspectWorld{pki: newPKI(t), pool: x509.NewCertPool()}
	w.pool.AddCert(authority.Certificate())
	with := inspect.Inspection{Authority: authority, Roots: w.pki.Pool}
	if change != nil {
		change(&with)
	}
	w.world = newWorld(t, text, func(s *Server) { serve(s); s.Inspect(&with) })
	return w
}

// tunnel is a TLS connection through a CONNECT.
func (w *inspectWorld) tunnel(t testing.TB, host, port string, protos ...string) *tls.Conn {
	t.Helper()
	c := w.dial(t).send(connectTo(host, port)).expect(established)
	inner := tls.Client(c.Conn, &tls.Config{ServerName: host, RootCAs: w.pool, NextProtos: protos})
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inner.Close() })
	return inner
}

// inside is a raw client inside a tunnel.
func (w *inspectWorld) inside(t testing.TB, host, port string) *testClient {
	t.Helper()
	c := w.tunnel(t, host, port)
	return &testClient{c, bufio.NewReader(c), t}
}

func insideGet(host, port, path string, fields ...string) string {
	return insideRequest("GET", host, port, path, fields...)
}

func insideRequest(method, host, port, path string, fields ...string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: " + host + ":" + port + "\r\n" + strings.Join(append(fields, "", ""), "\r\n")
}

func requestTo(path string) func(record.Record) bool {
	return func(r record.Record) bool { return r.Kind == record.KindRequest && r.HTTP.Path == path }
}

func closeOf(open record.Record) func(record.Record) bool {
	return func(r record.Record) bool { return r.Kind == record.KindClose && r.Flow == open.Flow }
}

func TestARequestInATunnelIsDecided(t *testing.T) {
	t.Parallel()
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, false, func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		io.WriteString(rw, r.Method+" "+r.Host+" "+r.RequestURI+" "+string(body))
	}, nil)
	c := w.inside(t, "allowed.test", o.port)
	c.send(insideGet("allowed.test", o.port, "/public/a?q=1"))
	if resp, body := c.response("GET"); resp.StatusCode != 200 || body != "GET allowed.test:"+o.port+" /public/a?q=1 " {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	c.send(insideRequest("POST", "allowed.test", o.port, "/public/b", "Content-Length: 5") + "hello")
	if resp, body := c.response("POST"); resp.StatusCode != 200 || !strings.HasSuffix(body, "/public/b hello") {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	c.send(insideGet("allowed.test", o.port, "/secret"))
	if resp, body := c.response("GET"); resp.StatusCode != 403 || !strings.Contains(body, `"class":"path-denied"`) {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	allowed := w.recorded(t, requestTo("/public/b"))
	if allowed.TLS == nil || !allowed.TLS.Inspected || allowed.Decision.Rule != "public" || allowed.Via != "connect" {
		t.Errorf("recorded %+v", allowed)
	}
	if end := w.recorded(t, closeOf(allowed)); end.HTTP.Status != 200 || end.Bytes.Up < 5 || end.Bytes.Down == 0 {
		t.Errorf("ended %+v %+v", end.HTTP, end.Bytes)
	}
	if denied := w.recorded(t, requestTo("/secret")); denied.Decision.Action != "deny" || denied.Decision.Class != "path-denied" {
		t.Errorf("recorded %+v", denied.Decision)
	}
	w.settled(t)
}

// TestAnotherHostInATunnelIsMisdirected names other servers in the Host field.
func TestAnotherHostInATunnelIsMisdirected(t *testing.T) {
	t.Parallel()
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, false, func(rw http.ResponseWriter, r *http.Request) { t.Errorf("%s %s went up", r.Host, r.RequestURI) }, nil)
	for _, host := range []string{"evil.test", "other.test:" + o.port, "allowed.test", "allowed.test:1", "127.0.0.1:" + o.port, "allowed.test@evil.test:" + o.port, "bad host"} {
		c := w.inside(t, "allowed.test", o.port)
		c.send("GET /public/x HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		if resp, body := c.response("GET"); resp.StatusCode != 421 && resp.StatusCode != 400 {
			t.Errorf("Host %s: %d %q", host, resp.StatusCode, body)
		}
	}
	w.recorded(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Class == "name-mismatch" })
	w.settled(t)
}

func TestHTTP2InATunnelIsDecided(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Trailer", "X-After")
		rw.Header().Set("X-Egressd-Id", "forged")
		io.Copy(rw, io.MultiReader(strings.NewReader(r.Proto+" "+r.Host+" "+r.RequestURI+" "), r.Body))
		rw.Header().Set("X-After", "done")
	}, nil)
	cc := w.h2(t, "allowed.test", o.port)
	resp, body := roundTrip(t, cc, "POST", "https://allowed.test:"+o.port+"/public/a?q=%2f", strings.NewReader("hello"))
	if resp.StatusCode != 200 || body != "HTTP/2.0 allowed.test:"+o.port+" /public/a?q=%2f hello" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	if resp.Trailer.Get("X-After") != "done" || resp.Header.Get("X-Egressd-Id") != "" {
		t.Errorf("header %v, trailer %v", resp.Header, resp.Trailer)
	}
	resp, body = roundTrip(t, cc, "GET", "https://allowed.test:"+o.port+"/secret", nil)
	if resp.StatusCode != 403 || !strings.Contains(body, `"class":"path-denied"`) || resp.Header.Get("X-Egressd-Id") == "" {
		t.Errorf("%d %v %q", resp.StatusCode, resp.Header, body)
	}
	resp, _ = roundTrip(t, cc, "GET", "https://other.test:"+o.port+"/public/a", nil)
	if resp.StatusCode != 421 {
		t.Errorf("another authority: %d", resp.StatusCode)
	}
	allowed := w.recorded(t, requestTo("/public/a"))
	if end := w.recorded(t, closeOf(allowed)); end.HTTP.Status != 200 || end.Bytes.Up < 5 || end.Bytes.Down == 0 || end.Outcome != "closed" {
		t.Errorf("ended %+v %+v", end, end.Bytes)
	}
	cc.Close()
	w.settled(t)
}

// h2 is an HTTP/2 connection inside a tunnel.
func (w *inspectWorld) h2(t *testing.T, host, port string) *http2.ClientConn {
	t.Helper()
	c := w.tunnel(t, host, port, "h2", "http/1.1")
	if p := c.ConnectionState().NegotiatedProtocol; p != "h2" {
		t.Fatalf("negotiated %q", p)
	}
	cc, err := (&http2.Transport{}).NewClientConn(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func roundTrip(t *testing.T, cc *http2.ClientConn, method, url string, body io.Reader) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := cc.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp, string(text)
}

func TestAnOpaqueTunnelStaysOpaque(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, false, func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "hello") }, nil)
	c := w.dial(t).send(connectTo("opaque.test", o.port)).expect(established)
	inner := tls.Client(c.Conn, &tls.Config{ServerName: "opaque.test", RootCAs: w.pki.Pool})
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	inner.Close()
	w.settled(t)
}
