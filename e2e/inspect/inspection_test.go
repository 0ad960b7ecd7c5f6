package inspect

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/record"
)

// insider is an ordinary HTTP client in the sandbox that trusts egressd's
// authority, and no other.
func insider(t *testing.T, d *world.Daemon, h2 bool) *http.Client {
	t.Helper()
	c := d.HTTPClient(nil)
	transport := c.Transport.(*http.Transport)
	transport.TLSClientConfig = &tls.Config{RootCAs: d.Trusts(t)}
	transport.ForceAttemptHTTP2, transport.DisableCompression = h2, true
	return c
}

// look asks for a URL and returns the response and its body.
func look(t *testing.T, c *http.Client, method, url string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// TestAnotherWayIsNotOffered has a host name HTTP/3 as another way to it,
// which would lead past egressd.
func TestAnotherWayIsNotOffered(t *testing.T) {
	d := world.Start(t, world.PolicyText(t, "P1"))
	for _, h2 := range []bool{false, true} {
		response, body := look(t, insider(t, d, h2), "GET", "https://api.allowed.test/public/altsvc")
		if response.StatusCode != 200 || !strings.HasPrefix(body, "origin") || response.Header.Get("X-Passes") != "yes" {
			t.Errorf("HTTP/2 %v: %s %q", h2, response.Status, body)
		}
		if way := response.Header.Get("Alt-Svc"); way != "" {
			t.Errorf("HTTP/2 %v: Alt-Svc %q came through", h2, way)
		}
	}
}

// TestEarlyDataIsRefused offers early data, and tickets that could carry some:
// a request in it could be sent again by whoever saw it.
func TestEarlyDataIsRefused(t *testing.T) {
	world.Covers(t, "TL-36")
	d := world.Start(t, world.PolicyText(t, "P0-inside"))
	heard := d.World.Origin.Heard.Mark()
	c, status, err := d.OpenTunnel("allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	defer c.Close()
	hello := (&world.Vector{Hello: "early-data.bin"}).FirstBytes(t)[0]
	early := "GET /early HTTP/1.1\r\nHost: allowed.test\r\n\r\n"
	c.Write(append(hello, append([]byte{23, 3, 3, 0, byte(len(early))}, early...)...))
	if !c.EndsWithin(world.Patience) {
		t.Error("the connection stayed open")
	}
	d.CloseRecord(t, c.LocalAddr().String())
	if said := d.World.Origin.Heard.Since(heard); said != "" {
		t.Errorf("upstream received %q", said)
	}
	givesNoTicket(t, d)
}

// tickets counts what a server gave to begin a later session with.
type tickets struct{ n atomic.Int32 }

func (*tickets) Get(string) (*tls.ClientSessionState, bool) { return nil, false }

func (c *tickets) Put(string, *tls.ClientSessionState) { c.n.Add(1) }

// givesNoTicket makes a request in a tunnel: without a ticket there is no
// session that early data could belong to.
func givesNoTicket(t *testing.T, d *world.Daemon) {
	t.Helper()
	var given tickets
	c, status, err := d.OpenTunnel("allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	defer c.Close()
	inner := tls.Client(c, &tls.Config{ServerName: "allowed.test", RootCAs: d.Trusts(t), ClientSessionCache: &given})
	io.WriteString(inner, "GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n")
	if a, err := world.ReadAnswer(bufio.NewReader(inner), "GET"); err != nil || a.Status != 200 {
		t.Errorf("status %d, %v", a.Status, err)
	}
	if n := given.n.Load(); n > 0 {
		t.Errorf("%d tickets were given", n)
	}
}

// TestEchoesAreNoted has a host send back the credential that it was given, or that it has
// from elsewhere, by a rule that adds none. What the client reads lacks it, and the record
// says that it was struck out.
func TestEchoesAreNoted(t *testing.T) {
	world.Covers(t, "MI-16")
	d := world.Start(t, world.PolicyText(t, "P1"))
	for _, h2 := range []bool{false, true} {
		for path, holds := range map[string]string{"/v1/echo": "Authorization: Bearer ", "/public/" + world.RealSecret: "origin "} {
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			response, body := look(t, insider(t, d, h2), "GET", "https://api.allowed.test"+path)
			if !strings.Contains(body, holds) || strings.Contains(body+fmt.Sprint(response.Header), world.RealSecret) {
				t.Errorf("HTTP/2 %v: %v %q", h2, response.Header, body)
			}
			noted := func(r record.Record) bool { return strings.Contains(r.Note, "credential") }
			if !world.Eventually(world.Settling, func() bool {
				records, _ := d.Log.Since(mark)
				return slices.ContainsFunc(records, noted)
			}) {
				t.Errorf("HTTP/2 %v, %s: no record notes the echo", h2, path)
			}
		}
	}
}

// TestSecretsStay looks for the credential wherever egressd says anything:
// answers, the log, what it prints, and what it prints when it is made to dump
// its stacks.
func TestSecretsStay(t *testing.T) {
	world.Covers(t, "MI-18", "AU-22")
	const inject = `    inject: {header: X-Key, value: "{}", file: api.secret}` + "\n"
	rules := "  - host: expired.looked-at.allowed.test:443\n    paths: [/v1/**]\n" + inject + "  - host: refuses.allowed.test:443\n    paths: [/v1/**]\n" + inject
	d := world.NewDaemon(t, strings.Replace(world.PolicyText(t, "P1"), "deny:\n", rules+"deny:\n", 1))
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	var said strings.Builder
	for _, h2 := range []bool{false, true} {
		c := insider(t, d, h2)
		for _, url := range []string{
			"https://api.allowed.test/v1/x", "https://api.allowed.test/v1/echo?q=1", "https://api.allowed.test/v1/bomb",
			"https://api.allowed.test/v1/../x", "https://expired.looked-at.allowed.test/v1/x", "http://api.allowed.test/v1/x",
		} {
			response, body := look(t, c, "GET", url)
			fmt.Fprintln(&said, response.Status, response.Header, body)
		}
		if _, err := c.Get("https://refuses.allowed.test/v1/x"); err == nil || !strings.Contains(err.Error(), "egressd") {
			t.Errorf("a host that refuses: %v", err)
		}
	}
	d.Cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-d.Exited:
	case <-time.After(world.Patience):
		d.Kill()
	}
	if !strings.Contains(said.String(), "502") {
		t.Errorf("no answer was a failure: %q", said.String())
	}
	if !world.Eventually(world.Settling, func() bool { return strings.Contains(d.Output.String(), "goroutine ") }) {
		t.Error("the stacks were not dumped")
	}
	if strings.Contains(said.String(), world.RealSecret) || strings.Contains(d.Output.String(), world.RealSecret) || d.Log.Holds(world.RealSecret) {
		t.Error("the credential was seen outside")
	}
}

// TestLeaves judges the certificates that clients see by the strictest reader
// at hand, and the folder that the authority lives in.
func TestLeaves(t *testing.T) {
	world.Covers(t, "MI-21")
	d := world.Start(t, world.PolicyText(t, "P1"))
	leaf := leafOf(t, d, "api.allowed.test")
	if len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != "api.allowed.test" || len(leaf.IPAddresses)+len(leaf.URIs)+len(leaf.EmailAddresses) > 0 {
		t.Errorf("the leaf is for %v %v", leaf.DNSNames, leaf.IPAddresses)
	}
	if !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || len(leaf.AuthorityKeyId) == 0 || leaf.IsCA {
		t.Errorf("usage %v, authority key %x, authority %v", leaf.ExtKeyUsage, leaf.AuthorityKeyId, leaf.IsCA)
	}
	if days := leaf.NotAfter.Sub(leaf.NotBefore) / (24 * time.Hour); days > 99 {
		t.Errorf("the leaf lives %d days", days)
	}
	path := filepath.Join(t.TempDir(), "leaf.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	strict := exec.Command("openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "api.allowed.test", "-CAfile", d.AuthorityFile(), path)
	if out, err := strict.CombinedOutput(); err != nil {
		t.Errorf("openssl: %v: %s", err, out)
	}
	authorityIsKept(t, d)
}

// authorityIsKept checks that nobody else can read the authority's key, and
// that the authority can sign leaves only.
func authorityIsKept(t *testing.T, d *world.Daemon) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(d.Dir, "ca"))
	if err != nil {
		t.Fatal(err)
	}
	keys := 0
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(d.Dir, "ca", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		stat, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("PRIVATE KEY")) {
			keys++
			if stat.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", e.Name(), stat.Mode())
			}
		}
	}
	if keys != 1 {
		t.Errorf("%d files hold a key", keys)
	}
	block, _ := pem.Decode(readFile(t, d.AuthorityFile()))
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !ca.IsCA || !ca.MaxPathLenZero {
		t.Errorf("the authority is %+v, %v", ca, err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// leafOf is the certificate that a client in a tunnel to host is shown.
func leafOf(t *testing.T, d *world.Daemon, host string) *x509.Certificate {
	t.Helper()
	c, status, err := d.OpenTunnel(host+":443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	defer c.Close()
	inner := tls.Client(c, &tls.Config{ServerName: host, RootCAs: d.Trusts(t)})
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	return inner.ConnectionState().PeerCertificates[0]
}

// TestManyLeaves asks for the certificates of many hosts, several clients at a
// time. Each is shown the one of its host, and memory stays where it was.
func TestManyLeaves(t *testing.T) {
	world.Covers(t, "MI-22")
	d := world.Start(t, world.PolicyText(t, "P1"))
	before := d.Descriptors()
	const hosts, clients = 480, 8
	var all sync.WaitGroup
	for n := range clients {
		all.Go(func() {
			for i := n; i < hosts; i += clients {
				host := fmt.Sprintf("n%d.looked-at.allowed.test", i)
				if leaf := leafOf(t, d, host); !slices.Equal(leaf.DNSNames, []string{host}) {
					t.Errorf("%s is shown a certificate for %v", host, leaf.DNSNames)
				}
			}
		})
	}
	all.Wait()
	if kib := d.Memory(t); kib > 128<<10 {
		t.Errorf("egressd holds %d KiB", kib)
	}
	d.Healthy(t, before)
}

// TestBombsPassUnopened downloads what is small until it is decompressed,
// which is for the client to do where the host has no credential.
func TestBombsPassUnopened(t *testing.T) {
	world.Covers(t, "MI-25")
	d := world.Start(t, world.PolicyText(t, "P1"))
	for _, h2 := range []bool{false, true} {
		response, body := look(t, insider(t, d, h2), "GET", "https://b.allowed.test/public/bomb")
		if response.Header.Get("Content-Encoding") != "gzip" || len(body) > world.BombSize/100 {
			t.Errorf("HTTP/2 %v: %v, %d bytes", h2, response.Header, len(body))
		}
		z, err := gzip.NewReader(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, z); err != nil || n != world.BombSize {
			t.Errorf("HTTP/2 %v: %d bytes came out, %v", h2, n, err)
		}
	}
	if kib := d.Memory(t); kib > 128<<10 {
		t.Errorf("egressd holds %d KiB", kib)
	}
}

// TestHEADIsRefusedWithoutBody asks by HEAD for what is denied: an answer to
// it ends with its head (RFC 9110 section 9.3.2).
func TestHEADIsRefusedWithoutBody(t *testing.T) {
	world.Covers(t, "MI-10")
	d := world.Start(t, world.PolicyText(t, "P1"))
	for _, v := range []*world.Vector{
		{Send: []string{"HEAD http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"}},
		{Inside: "b.allowed.test:443", Send: []string{"HEAD /public/private/x HTTP/1.1\r\nHost: b.allowed.test\r\n\r\n"}},
	} {
		v.ID, v.Says, v.Policy, v.Expect = "MI-10", "HEAD", "P1", world.Expectation{Status: []int{403}}
		ways := []string{world.WayRaw}
		if v.Inside != "" {
			ways = world.InsideWays(v)
		}
		for _, way := range ways {
			s := d.Observe(t, v, way, "")
			if len(s.Answers) != 1 || s.Answers[0].Status != 403 || s.Answers[0].Header.Get("X-Egressd-Id") == "" {
				t.Errorf("%s: answered %+v, %v", way, s.Answers, s.Err)
			} else if s.Answers[0].Body != "" || s.Data != "" {
				t.Errorf("%s: behind the head came %q", way, s.Answers[0].Body+s.Data)
			}
		}
	}
}
