package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/record"
)

// TestTheTLSOfForwardedRequestsIsVerified has an upstream with a certificate for another host, and one that speaks no TLS.
func TestTheTLSOfForwardedRequestsIsVerified(t *testing.T) {
	w := newForwardedWorld(t)
	strange := newPKI(t).secureOrigin(t, false, shown, nil)
	other := w.pki.secureOrigin(t, false, shown, func(c *tls.Config) { c.Certificates = []tls.Certificate{w.pki.Server(t, nil, "elsewhere.test")} })
	plain := webOrigin(t, shown)
	for says, row := range map[string]struct{ port, why string }{
		"an authority that nobody trusts": {strange.port, "an authority that is not trusted"},
		"another host":                    {other.port, "certificate is for another host"},
		"no TLS":                          {plain.port, "TLS handshake failed"},
	} {
		r, body := w.dialForwarded(t).send(forwardedHead("GET", "https", "allowed.test", row.port, "/public/a", token(goodToken))).answer("GET")
		if r.StatusCode != 502 || !strings.Contains(body, `"class":"network-tls"`) || !strings.Contains(body, row.why) {
			t.Errorf("%s: %d %s", says, r.StatusCode, body)
		}
	}
}

// TestForwardedRequestsOverTLS has the platform speak TLS with the listener.
func TestForwardedRequestsOverTLS(t *testing.T) {
	w := newForwardedWorld(t)
	authority, err := certs.Create(t.TempDir() + "/own")
	if err != nil {
		t.Fatal(err)
	}
	at := w.forward(t, func() *TLSListener { return &TLSListener{Authority: authority, Names: []string{"egress.test"}} })
	secure := w.pki.secureOrigin(t, false, shown, nil)
	roots := newPKI(t).Pool
	roots.AddCert(authority.Certificate())
	conn, err := tls.Dial("tcp", at, &tls.Config{ServerName: "egress.test", RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := &testClient{conn, bufio.NewReader(conn), t}
	for range 2 {
		c.send(forwardedHead("GET", "https", "allowed.test", secure.port, "/public/a", token(goodToken)))
		if r, body := c.answer("GET"); r.StatusCode != 200 || !strings.Contains(body, "GET /public/a host=allowed.test") {
			t.Errorf("%d %s", r.StatusCode, body)
		}
	}
}

// TestAForwardedWebSocket becomes one at an upstream over TLS.
func TestAForwardedWebSocket(t *testing.T) {
	w := newForwardedWorld(t)
	secure := w.pki.rawOrigin(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		if r, err := http.ReadRequest(in); err != nil || r.Header.Get("Upgrade") != "websocket" {
			return
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
		io.Copy(c, in)
	}, "http/1.1")
	upgrade := []string{token("u+x"), "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}
	c := w.dialForwarded(t).send(forwardedHead("GET", "https", "opaque.test", secure.port, "/", upgrade...))
	r, err := http.ReadResponse(c.in, nil)
	if err != nil || r.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", r, err)
	}
	c.send("\x82\x03abc").expect("\x82\x03abc")
	c.Close()
	w.recorded(t, func(o record.Record) bool {
		return o.Kind == record.KindClose && o.HTTP != nil && o.HTTP.Status == http.StatusSwitchingProtocols
	})
}
