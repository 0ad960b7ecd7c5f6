package world

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/egressd/egressd/internal/lab"
)

// RealSecret is the credential that P1 adds to requests for api.allowed.test.
const RealSecret = "REAL-3f9a1c77e0b2d418"

// InsideWays returns the ways in that a vector inside a tunnel is put through.
func InsideWays(v *Vector) []string {
	if v.Ways != nil {
		return v.Ways
	}
	return []string{WayInside, WayInsideH2}
}

// Trusts returns what a sandbox trusts that was given egressd's authority.
func (d *Daemon) Trusts(t *testing.T) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(d.AuthorityFile())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatal("the authority's file holds no certificate")
	}
	return pool
}

// AuthorityFile is the certificate of the authority of P1 and P0-inside.
func (d *Daemon) AuthorityFile() string { return filepath.Join(d.Dir, "ca", "ca.pem") }

// WithTLS is a policy with a TLS listener for the proxy, at TLSPort.
func WithTLS(text string) string {
	return text + fmt.Sprintf("listen: {open_to_network: true, proxy: [\"tls:%[1]s:%[2]d\", \"%[1]s:%[3]d\"]}\n", lab.GatewayIPv4, TLSPort, ProxyPort)
}

// TLSPort is the port of the TLS listener of [WithTLS].
const TLSPort = 3443

// dialTLS connects to the TLS listener from the sandbox.
func (d *Daemon) dialTLS() (net.Conn, error) {
	text, err := os.ReadFile(d.AuthorityFile()) // of a policy that names the folder
	if err != nil {
		text, err = os.ReadFile(filepath.Join(d.Dir, "egressd", "ca", "ca.pem"))
	}
	if err != nil {
		return nil, err
	}
	trusts := x509.NewCertPool()
	trusts.AppendCertsFromPEM(text)
	c, err := d.World.Sandbox.Dial("tcp", net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(TLSPort)))
	if err != nil {
		return nil, err
	}
	secured := tls.Client(c, &tls.Config{ServerName: lab.GatewayIPv4, RootCAs: trusts})
	return secured, secured.Handshake()
}

// enter opens a tunnel and TLS in it, of which the certificate has to be
// egressd's.
func (c *client) enter(t *testing.T, d *Daemon, v *Vector, protos ...string) (*tls.Conn, error) {
	t.Helper()
	to := v.Inside
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	a, err := ReadAnswer(c.r, http.MethodConnect)
	if err != nil || a.Status != http.StatusOK {
		return nil, fmt.Errorf("CONNECT %s: status %d: %w", to, a.Status, err)
	}
	host, _, err := net.SplitHostPort(to)
	if err != nil {
		return nil, err
	}
	inner := tls.Client(c, &tls.Config{ServerName: cmp.Or(v.Claims, host), RootCAs: d.Trusts(t), NextProtos: protos})
	return inner, inner.Handshake()
}

// inside puts a raw vector through a tunnel, as HTTP/1.
func (c *client) inside(t *testing.T, d *Daemon, v *Vector) error {
	inner, err := c.enter(t, d, v, "http/1.1")
	if err != nil {
		return err
	}
	in := &client{Conn: inner, r: bufio.NewReader(inner), Exchange: c.Exchange}
	return in.raw(t, v)
}

// insideRoutes are what hosts answer that only requests inside TLS are sent to.
func (o *Origin) insideRoutes() {
	o.Mux.HandleFunc("/v1/echo", func(w http.ResponseWriter, r *http.Request) {
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
	o.Mux.HandleFunc("/v1/count", count)
	o.Mux.HandleFunc("/public/count", count)
	bomb := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.CopyN(z, zeros{}, BombSize)
		z.Close()
	}
	o.Mux.HandleFunc("/v1/bomb", bomb)
	o.Mux.HandleFunc("/public/bomb", bomb)
	o.Mux.HandleFunc("/public/altsvc", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Alt-Svc", `h3=":443"; ma=86400`)
		w.Header().Set("X-Passes", "yes")
		io.WriteString(w, "origin says there is another way")
	})
}

// BombSize is what /bomb comes to where it is decompressed.
const BombSize = 64 << 20
