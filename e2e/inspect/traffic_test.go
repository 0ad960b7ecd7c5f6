package inspect

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// TestOrdinaryTrafficInside carries inside inspected tunnels what
// TestOrdinaryTraffic carries in opaque ones.
func TestOrdinaryTrafficInside(t *testing.T) {
	world.Covers(t, "H1-01")
	d := world.Start(t, world.PolicyText(t, "P0-inside"))
	before := d.Descriptors()
	const base = "https://a.allowed.test"
	for version, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		c := insider(t, d, h2)
		t.Run(version+" GET", func(t *testing.T) { d.ExpectBody(t, c, "GET", base+"/x?q=1", nil, "GET /x") })
		t.Run(version+" HEAD", func(t *testing.T) { d.ExpectBody(t, c, "HEAD", base+"/", nil, "") })
		t.Run(version+" POST", func(t *testing.T) {
			d.ExpectBody(t, c, "POST", base+"/count", bytes.NewReader(make([]byte, 100_000)), "received 100000 bytes, <nil>")
		})
		t.Run(version+" POST of unknown length", func(t *testing.T) {
			body := io.MultiReader(strings.NewReader("abc"), bytes.NewReader(make([]byte, 4<<20)))
			d.ExpectBody(t, c, "POST", base+"/count", body, "received 4194307 bytes, <nil>")
		})
		t.Run(version+" large answer", func(t *testing.T) { d.ExpectLarge(t, c, base) })
	}
	d.Healthy(t, before)
}

// inTunnel opens a tunnel to allowed.test, and TLS in it that ends in egressd.
func inTunnel(t *testing.T, d *world.Daemon) (*world.Tunnel, *world.Tunnel) {
	t.Helper()
	outer, status, err := d.OpenTunnel("allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	t.Cleanup(func() { outer.Close() })
	inner := tls.Client(outer, &tls.Config{ServerName: "allowed.test", RootCAs: d.Trusts(t)})
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	return outer, &world.Tunnel{Conn: inner, R: bufio.NewReader(inner)}
}

// TestHostileUpstreamInside has hosts answer inside TLS what would
// desynchronise the client, or speak in egressd's name.
func TestHostileUpstreamInside(t *testing.T) {
	world.Covers(t, "H1-25")
	d := world.Start(t, world.PolicyText(t, "P0-inside"))
	before := d.Descriptors()
	for name := range world.HostileAnswers() {
		t.Run(name, func(t *testing.T) {
			_, c := inTunnel(t, d)
			fmt.Fprintf(c, "GET /hostile/%s HTTP/1.1\r\nHost: allowed.test\r\n\r\nGET /after HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n", name)
			got, err := io.ReadAll(c)
			if err != nil && !world.Gone(err) {
				t.Fatalf("no end: %v after %q", err, world.Shorten(string(got)))
			}
			d.NotFooled(t, string(got))
		})
	}
	if kib := d.Memory(t); kib > 128<<10 {
		t.Errorf("egressd holds %d KiB", kib)
	}
	d.Healthy(t, before)
}

// TestReloadInside changes the paths that a host's rule allows while a tunnel
// to it is open, and then takes the rule away.
func TestReloadInside(t *testing.T) {
	d := world.Start(t, world.PolicyText(t, "P0-inside"))
	_, c := inTunnel(t, d)
	ask := func(path string) world.Answer {
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: allowed.test\r\n\r\n", path)
		a, err := world.ReadAnswer(c.R, "GET")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	replace := func(policy string) {
		before := d.Digest(t)
		d.Edit(t, policy)
		d.ExpectPolicy(t, func(r record.Record) bool { return r.Decision.Policy != before && d.Digest(t) == r.Decision.Policy })
	}
	if a := ask("/one"); a.Status != http.StatusOK {
		t.Fatalf("the first request is answered %d", a.Status)
	}
	narrow := strings.Replace(world.PolicyText(t, "P0-inside"), `{host: allowed.test, paths: ["/**"]}`, `{host: allowed.test, paths: ["/two"]}`, 1)
	replace(narrow)
	if a := ask("/two"); a.Status != http.StatusOK {
		t.Errorf("what is still allowed is answered %d", a.Status)
	}
	if a := ask("/one"); a.Status != http.StatusForbidden || a.Problem().Class != "path-denied" {
		t.Errorf("what is no longer allowed is answered %d %q", a.Status, a.Body)
	}
	outer, _ := inTunnel(t, d)
	replace(strings.Replace(narrow, `  - {host: allowed.test, paths: ["/two"]}`+"\n", "", 1))
	if !outer.EndsWithin(world.Patience) {
		t.Error("the tunnel was not cut")
	}
}
