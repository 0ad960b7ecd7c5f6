//go:build linux

package proxy

import (
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestASilentCapturedConnectionIsHeldForOneHelloTimeout, on ports where the client speaks first.
func TestASilentCapturedConnectionIsHeldForOneHelloTimeout(t *testing.T) {
	t.Parallel()
	const hello = 2 * time.Second
	for _, to := range []string{"192.0.2.1:443", "192.0.2.1:80", "192.0.2.1:8443"} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, openPolicy, func(s *Server) { s.Limits.Hello = hello })
			c, began := w.captured(t, netip.MustParseAddrPort(to)), time.Now()
			io.Copy(io.Discard, c.Conn) // until it is reset
			if held := time.Since(began); held < hello/2 || held > hello*4/3 {
				t.Errorf("held for %v", held)
			}
			w.opened(t, "192.0.2.1")
		})
	}
}

// TestClientsOfAnotherKindAreToldWhatToUse.
func TestClientsOfAnotherKindAreToldWhatToUse(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	connect := "CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n"
	request := "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n"
	const challenge = `Proxy-Authenticate: Basic realm="egressd"`
	for says, row := range map[string]struct {
		sends, begins, holds, class string
	}{
		"https to the proxy":        {"GET https://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "HTTP/1.1 400 ", "CONNECT", "malformed-request"},
		"a path to the proxy":       {"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "HTTP/1.1 400 ", "Send the whole URL", "malformed-request"},
		"SOCKS4":                    {"\x04\x01\x01\xbb\x0a\x00\x00\x05u\x00", "\x00\x5b\x00\x00\x00\x00\x00\x00", "", "malformed-request"},
		"a reserved byte of SOCKS5": {socksHello + "\x05\x01\x01" + socksTo("allowed.test", "443")[3:], "\x05\x00\x05\x01\x00\x01", "", "malformed-request"},
		"Bearer with CONNECT":       {connect + "Proxy-Authorization: Bearer abc\r\n\r\n", "HTTP/1.1 407 ", challenge, "unknown-sandbox"},
		"junk with CONNECT":         {connect + "Proxy-Authorization: !!!\r\n\r\n", "HTTP/1.1 407 ", challenge, "unknown-sandbox"},
		"no base64 with CONNECT":    {connect + "Proxy-Authorization: Basic !!!\r\n\r\n", "HTTP/1.1 407 ", challenge, "unknown-sandbox"},
		"no colon with CONNECT":     {connect + "Proxy-Authorization: Basic YWJj\r\n\r\n", "HTTP/1.1 407 ", challenge, "unknown-sandbox"},
		"Bearer with a request":     {request + "Proxy-Authorization: Bearer abc\r\n\r\n", "HTTP/1.1 407 ", challenge, "unknown-sandbox"},
		"two fields with CONNECT":   {connect + "Proxy-Authorization: Basic YTpi\r\nProxy-Authorization: Basic YTpi\r\n\r\n", "HTTP/1.1 400 ", "", "malformed-request"},
	} {
		before := len(w.records(t))
		got := w.dial(t).send(row.sends).rest()
		if !strings.HasPrefix(got, row.begins) || !strings.Contains(got, row.holds) {
			t.Errorf("%s: read %q", says, got)
		}
		refused := w.records(t)[before:]
		if len(refused) != 1 || refused[0].Kind != record.KindRefused || refused[0].Decision.Class != row.class || strings.Contains(refused[0].Raw, "abc") {
			t.Errorf("%s: recorded %+v", says, refused)
		}
	}
}
