package proxy

import (
	"bufio"
	"crypto/tls"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

// TestABrowserReadsWhyItsConnectWasRefused asks as browsers and as others do.
func TestABrowserReadsWhyItsConnectWasRefused(t *testing.T) {
	t.Parallel()
	w := newInspectWorld(t, inspectPolicy, nil)
	connect := "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nUser-Agent: %\r\n\r\n"
	c := w.dial(t).send(strings.Replace(connect, "%", "Mozilla/5.0 (X11; Linux x86_64)", 1)).expect(established)
	inner := tls.Client(c.Conn, &tls.Config{ServerName: "evil.test", RootCAs: w.pool, NextProtos: []string{"h2", "http/1.1"}})
	page := &testClient{inner, bufio.NewReader(inner), t}
	page.send("GET / HTTP/1.1\r\nHost: evil.test\r\nUser-Agent: Mozilla/5.0\r\nAccept: text/html\r\n\r\n")
	resp, body := page.response("GET")
	if resp.Header.Get("Content-Security-Policy") != "default-src 'none'; sandbox" || resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("the page may act for its host, or stay: %v", resp.Header)
	}
	if resp.StatusCode != 403 || !strings.Contains(body, "<h1>Blocked by egressd: evil.test:443 default-deny") {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	if n := w.count(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Action == "deny" && r.Dst != nil }); n != 1 {
		t.Errorf("%d records of the refusal", n)
	}
	w.settled(t)
	if got := w.dial(t).send(strings.Replace(connect, "%", "curl/8", 1)).rest(); !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("curl read %q", got)
	}
}

func TestWithoutAnAuthorityABrowserIsRefusedAsOthers(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	got := w.dial(t).send("CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nUser-Agent: Mozilla/5.0\r\n\r\n").rest()
	if !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("read %q", got)
	}
}
