package e2e

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/record"
)

// TestOrdinaryTrafficInside carries inside inspected tunnels what
// TestOrdinaryTraffic carries in opaque ones.
func TestOrdinaryTrafficInside(t *testing.T) {
	covers(t, "H1-01")
	d := start(t, policyText(t, "P0-inside"))
	before := d.descriptors()
	const base = "https://a.allowed.test"
	for version, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		c := d.insider(t, h2)
		t.Run(version+" GET", func(t *testing.T) { d.expectBody(t, c, "GET", base+"/x?q=1", nil, "GET /x") })
		t.Run(version+" HEAD", func(t *testing.T) { d.expectBody(t, c, "HEAD", base+"/", nil, "") })
		t.Run(version+" POST", func(t *testing.T) {
			d.expectBody(t, c, "POST", base+"/count", bytes.NewReader(make([]byte, 100_000)), "received 100000 bytes, <nil>")
		})
		t.Run(version+" POST of unknown length", func(t *testing.T) {
			body := io.MultiReader(strings.NewReader("abc"), bytes.NewReader(make([]byte, 4<<20)))
			d.expectBody(t, c, "POST", base+"/count", body, "received 4194307 bytes, <nil>")
		})
		t.Run(version+" large answer", func(t *testing.T) { d.expectLarge(t, c, base) })
	}
	d.healthy(t, before)
}

// inTunnel opens a tunnel to allowed.test, and TLS in it that ends in egressd.
func (d *daemon) inTunnel(t *testing.T) (*tunnel, *tunnel) {
	t.Helper()
	outer, status, err := d.open("allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	t.Cleanup(func() { outer.Close() })
	inner := tls.Client(outer, &tls.Config{ServerName: "allowed.test", RootCAs: d.trusts(t)})
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	return outer, &tunnel{Conn: inner, r: bufio.NewReader(inner)}
}

// TestHostileUpstreamInside has hosts answer inside TLS what would
// desynchronise the client, or speak in egressd's name.
func TestHostileUpstreamInside(t *testing.T) {
	covers(t, "H1-25")
	d := start(t, policyText(t, "P0-inside"))
	before := d.descriptors()
	for name := range hostileAnswers() {
		t.Run(name, func(t *testing.T) {
			_, c := d.inTunnel(t)
			fmt.Fprintf(c, "GET /hostile/%s HTTP/1.1\r\nHost: allowed.test\r\n\r\nGET /after HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n", name)
			got, err := io.ReadAll(c)
			if err != nil && !gone(err) {
				t.Fatalf("no end: %v after %q", err, shorten(string(got)))
			}
			d.notFooled(t, string(got))
		})
	}
	if kib := d.memory(t); kib > 128<<10 {
		t.Errorf("egressd holds %d KiB", kib)
	}
	d.healthy(t, before)
}

// TestReloadInside changes the paths that a host's rule allows while a tunnel
// to it is open, and then takes the rule away.
func TestReloadInside(t *testing.T) {
	d := start(t, policyText(t, "P0-inside"))
	_, c := d.inTunnel(t)
	ask := func(path string) answer {
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: allowed.test\r\n\r\n", path)
		a, err := readAnswer(c.r, "GET")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	replace := func(policy string) {
		before := d.digest(t)
		d.edit(t, policy)
		d.expectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before && d.digest(t) == r.Decision.Policy })
	}
	if a := ask("/one"); a.status != http.StatusOK {
		t.Fatalf("the first request is answered %d", a.status)
	}
	narrow := strings.Replace(policyText(t, "P0-inside"), `{host: allowed.test, paths: ["/**"]}`, `{host: allowed.test, paths: ["/two"]}`, 1)
	replace(narrow)
	if a := ask("/two"); a.status != http.StatusOK {
		t.Errorf("what is still allowed is answered %d", a.status)
	}
	if a := ask("/one"); a.status != http.StatusForbidden || a.problem().Class != "path-denied" {
		t.Errorf("what is no longer allowed is answered %d %q", a.status, a.body)
	}
	outer, _ := d.inTunnel(t)
	replace(strings.Replace(narrow, `  - {host: allowed.test, paths: ["/two"]}`+"\n", "", 1))
	if !outer.endsWithin(patience) {
		t.Error("the tunnel was not cut")
	}
}
