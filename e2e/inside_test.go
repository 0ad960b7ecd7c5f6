package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// realSecret is the credential that P1 adds to requests for api.allowed.test.
const realSecret = "REAL-3f9a1c77e0b2d418"

// insideWays returns the ways in that a vector inside a tunnel is put through.
func insideWays(v *vector) []string {
	if v.Ways != nil {
		return v.Ways
	}
	return []string{wayInside, wayInsideH2}
}

// trusts returns what a sandbox trusts that was given egressd's authority.
func (d *daemon) trusts(t *testing.T) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(d.authorityFile())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatal("the authority's file holds no certificate")
	}
	return pool
}

// authorityFile is the certificate of the authority of P1 and P0-inside.
func (d *daemon) authorityFile() string { return filepath.Join(d.dir, "ca", "ca.pem") }

// enter opens a tunnel and TLS in it, of which the certificate has to be
// egressd's.
func (c *client) enter(t *testing.T, d *daemon, to string, protos ...string) (*tls.Conn, error) {
	t.Helper()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	a, err := readAnswer(c.r, http.MethodConnect)
	if err != nil || a.status != http.StatusOK {
		return nil, fmt.Errorf("CONNECT %s: status %d: %w", to, a.status, err)
	}
	host, _, err := net.SplitHostPort(to)
	if err != nil {
		return nil, err
	}
	inner := tls.Client(c, &tls.Config{ServerName: host, RootCAs: d.trusts(t), NextProtos: protos})
	return inner, inner.Handshake()
}

// inside puts a raw vector through a tunnel, as HTTP/1.
func (c *client) inside(t *testing.T, d *daemon, v *vector) error {
	inner, err := c.enter(t, d, v.Inside, "http/1.1")
	if err != nil {
		return err
	}
	in := &client{Conn: inner, r: bufio.NewReader(inner), exchange: c.exchange}
	return in.raw(t, v)
}

// insideOf returns the vector as it is inside a tunnel to allowed.test, and
// whether it can be said there.
func insideOf(v *vector) (vector, bool) {
	if v.Policy != "P0" || !strings.HasPrefix(v.ID, "H1-") || v.ID == "H1-02" || len(v.Send) == 0 {
		return vector{}, false
	}
	const base = "http://allowed.test"
	in := *v
	in.Policy, in.Inside, in.Send = "P0-inside", "allowed.test:443", nil
	for _, part := range v.Send {
		method, rest, _ := strings.Cut(part, base)
		if rest == "" || len(method) > len("OPTIONS  ") {
			return vector{}, false
		}
		in.Send = append(in.Send, method+rest)
	}
	return in, true
}

// TestConformanceInside says inside an inspected tunnel what the vectors of
// group H1 say in clear: the same has to come of it.
func TestConformanceInside(t *testing.T) {
	d := start(t, policyText(t, "P0-inside"))
	before := d.descriptors()
	said := 0
	all := vectors(t)
	for i := range all {
		if v, ok := insideOf(&all[i]); ok {
			said++
			t.Run(v.name(), func(t *testing.T) { d.try(t, &v, wayInside, "") })
		}
	}
	if said < 60 {
		t.Errorf("only %d vectors can be said inside", said)
	}
	d.healthy(t, before)
}

// insideRoutes are what hosts answer that only requests inside TLS are sent to.
func (o *origin) insideRoutes() {
	o.mux.HandleFunc("/v1/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		var all bytes.Buffer
		r.Header.Write(&all)
		w.Write(all.Bytes())
		io.Copy(w, r.Body)
	})
	count := func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "origin received %d bytes, %v", n, err)
	}
	o.mux.HandleFunc("/v1/count", count)
	o.mux.HandleFunc("/public/count", count)
	bomb := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.CopyN(z, zeros{}, bombSize)
		z.Close()
	}
	o.mux.HandleFunc("/v1/bomb", bomb)
	o.mux.HandleFunc("/public/bomb", bomb)
	o.mux.HandleFunc("/public/altsvc", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Alt-Svc", `h3=":443"; ma=86400`)
		w.Header().Set("X-Passes", "yes")
		io.WriteString(w, "origin says there is another way")
	})
}

// bombSize is what /bomb comes to where it is decompressed.
const bombSize = 64 << 20
