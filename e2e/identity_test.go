package e2e

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// neighbour is the second sandbox of the lab, which is made once.
var neighbour = sync.OnceValues(func() (*lab.Net, error) {
	w, err := openWorld()
	if err != nil {
		return nil, err
	}
	return w.Neighbour()
})

// A dialer connects to the proxy as somebody.
type dialer func() (net.Conn, error)

func from(n *lab.Net, address string) dialer {
	return func() (net.Conn, error) { return n.Dial("tcp", address) }
}

func authorization(user, token string) string {
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+token)) + "\r\n"
}

// ask sends one CONNECT to allowed.test and returns all that is answered to a
// refusal, or the head of what is answered to a connection that stands.
func (dial dialer) ask(t *testing.T, credentials string) (head string, c net.Conn) {
	t.Helper()
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n%s\r\n", credentials)
	in := bufio.NewReader(c)
	for !strings.HasSuffix(head, "\r\n\r\n") {
		line, err := in.ReadString('\n')
		if head += line; err != nil {
			t.Fatalf("answered %q, %v", head, err)
		}
	}
	if strings.HasPrefix(head, "HTTP/1.1 200 ") {
		return head, c
	}
	rest, _ := io.ReadAll(in)
	return head + string(rest), c
}

// is reports who the log says asked, by the record of the open.
func (d *daemon) is(t *testing.T, mark int) (last record.Record) {
	t.Helper()
	opened := func() bool {
		records, _ := d.log.since(mark)
		for _, r := range records {
			if r.Kind == record.KindOpen {
				last = r
			}
		}
		return last.Kind != ""
	}
	if !eventually(settling, opened) {
		t.Error("nothing is recorded")
	}
	return last
}

// expectSandbox connects and looks for the name in the record.
func (d *daemon) expectSandbox(t *testing.T, says string, dial dialer, credentials, want string) record.Record {
	t.Helper()
	mark := d.marked(t)
	head, _ := dial.ask(t, credentials)
	r := d.is(t, mark)
	status := "HTTP/1.1 200 "
	if want == "" {
		status = "HTTP/1.1 407 "
	}
	if !strings.HasPrefix(head, status) || r.Sandbox != want {
		t.Errorf("%s: answered %q, and the record says sandbox %q, want %q", says, head, r.Sandbox, want)
	}
	return r
}

const bySourceText = `version: 1
allow: [allowed.test]
sandboxes:
  - {name: near, source: [10.99.0.0/24, "fd99::/64"]}
  - {name: next, source: [10.97.0.0/24], token_file: web.token}
  - {name: wide, source: [10.96.0.0/12]}
  - {name: ci, token_file: ci.token}
`

// TestSandboxesBySource has two sandboxes in namespaces of their own ask at one
// port at once.
func TestSandboxesBySource(t *testing.T) {
	d := start(t, bySourceText)
	other, err := neighbour()
	if err != nil {
		t.Fatal(err)
	}
	near, next := from(d.world.Sandbox, d.address()), from(other, d.address())
	six := from(d.world.Sandbox, net.JoinHostPort(lab.GatewayIPv6, fmt.Sprint(d.port)))
	right := authorization("next", "another-secret")
	first := d.expectSandbox(t, "the one", near, "", "near")
	second := d.expectSandbox(t, "the other, while the one is there", next, right, "next")
	if !strings.HasPrefix(first.Src, "10.99.0.1:") || !strings.HasPrefix(second.Src, lab.NeighbourIPv4+":") {
		t.Errorf("recorded from %s and %s", first.Src, second.Src)
	}
	d.expectSandbox(t, "the one over IPv6", six, "", "near")
	d.expectSandbox(t, "the other without its token", next, "", "")
	d.expectSandbox(t, "the one with the other's token", near, right, "")
	d.expectSandbox(t, "the other's token with another name", next, authorization("ci", "open-sesame"), "")
	if d.log.holds("another-secret") || d.log.holds("open-sesame") {
		t.Error("a token stands in the log")
	}
}

// ids are what differs between two refusals.
var ids = regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{10}\b`)

// TestNobodyLearnsWhoExists tries tokens and names of others, from a sandbox
// that is placed by its address and from one that is not, and compares what is
// answered and recorded with what a name that nobody has gets.
func TestNobodyLearnsWhoExists(t *testing.T) {
	d := start(t, strings.Replace(bySourceText, "  - {name: wide, source: [10.96.0.0/12]}\n", "", 1))
	other, err := neighbour()
	if err != nil {
		t.Fatal(err)
	}
	next := authorization("next", "another-secret") // from elsewhere it is no use
	tries := []string{
		authorization("nobody", "wrong"), authorization("ci", "wrong"), authorization("ci", "open-sesame"), next,
	}
	for says, dial := range map[string]dialer{"placed": from(d.world.Sandbox, d.address()), "placed, and needs a token": from(other, d.address())} {
		var answers, records []string
		least := 200 * time.Millisecond
		for i, credentials := range tries {
			if credentials == next && strings.Contains(says, "needs") {
				credentials = authorization("next", "wrong")
			}
			mark, began := d.marked(t), time.Now()
			head, _ := dial.ask(t, credentials)
			if took := time.Since(began); took < least {
				t.Errorf("%s: try %d was answered within %v", says, i, took)
			}
			least *= 2 // the wait grows with each, whatever is tried
			answers = append(answers, ids.ReplaceAllString(head, "ID"))
			records = append(records, d.essence(t, mark))
		}
		if slices.Sort(answers); answers[0] != answers[len(answers)-1] || !strings.Contains(answers[0], "unknown-sandbox") {
			t.Errorf("%s: the answers differ: %q", says, answers)
		}
		if slices.Sort(records); records[0] != records[len(records)-1] {
			t.Errorf("%s: the records differ: %q", says, records)
		}
	}
}

// essence is the one record since the mark, without what each has of its own.
func (d *daemon) essence(t *testing.T, mark int) string {
	t.Helper()
	r := d.is(t, mark)
	if all, _ := d.log.since(mark); len(all) != 1 {
		t.Errorf("%d records of one refusal", len(all))
	}
	r.Flow, r.Src, r.Seq, r.Time = "", "", 0, time.Time{}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// as connects to a unix socket as another user. The thread whose user it is
// ends with it.
func as(uid int, path string) dialer {
	return func() (c net.Conn, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			if uid != os.Geteuid() {
				u := uintptr(uid)
				if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, u, u, u); errno != 0 {
					err = errno
					return
				}
			}
			c, err = net.Dial("unix", path)
		}()
		<-done
		return c, err
	}
}

// sockets returns a folder that every user can pass through.
func sockets(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "egressd-e2e-sockets-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSandboxesByUser has two users ask at one socket. Where the lab has one
// user alone, it is that one and a list in which it does not stand.
func TestSandboxesByUser(t *testing.T) {
	socket := filepath.Join(sockets(t), "shared")
	policy := fmt.Sprintf(`version: 1
allow: [allowed.test]
listen: {proxy: ["unix:%s", "%s:%d"]}
sandboxes:
  - {name: root, uid: [0]}
  - {name: user, uid: [1000, 1001]}
  - {name: ci, token_file: ci.token}
`, socket, lab.GatewayIPv4, proxyPort)
	d := start(t, policy)
	r := d.expectSandbox(t, "root", as(0, socket), "", "root")
	if exe, _ := os.Executable(); r.Process == nil || r.Process.PID != os.Getpid() || r.Process.Exe != exe {
		t.Errorf("recorded %+v of process %d, %s", r.Process, os.Getpid(), exe)
	}
	d.expectSandbox(t, "root with another's token", as(0, socket), authorization("ci", "open-sesame"), "")
	d.expectSandbox(t, "over TCP", d.dial, "", "")
	d.expectSandbox(t, "over TCP with the name of a user", d.dial, authorization("user", ""), "")
	if c, err := as(1000, socket)(); errors.Is(err, syscall.EINVAL) {
		t.Log("the lab has no second user: it is not run by root")
		d.edit(t, strings.Replace(policy, "uid: [0]", "uid: [7]", 1))
		d.expectPolicy(t, func(r record.Record) bool { return strings.Contains(r.Note, "reloaded") })
		d.expectSandbox(t, "root, once it is not listed", as(0, socket), "", "")
		return
	} else if c != nil {
		c.Close()
	}
	d.expectSandbox(t, "a user", as(1000, socket), "", "user")
	d.expectSandbox(t, "another of the same sandbox", as(1001, socket), "", "user")
	d.expectSandbox(t, "a user who is nobody's", as(1002, socket), "", "")
	d.expectSandbox(t, "a user who is nobody's, with a token", as(1002, socket), authorization("ci", "open-sesame"), "ci")
	d.expectSandbox(t, "a user with another's token", as(1000, socket), authorization("ci", "open-sesame"), "")
}

// clientCertificates signs client certificates, and keeps them as files.
type clientCertificates struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newClientCertificates(t *testing.T, dir string) *clientCertificates {
	t.Helper()
	c := &clientCertificates{dir: dir}
	c.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	c.cert.Subject.CommonName = "clients"
	c.write(t, "clients", c.cert)
	return c
}

// write signs a certificate and writes it and its key. The first is the authority.
func (c *clientCertificates) write(t *testing.T, name string, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if c.key == nil {
		c.key = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, key.Public(), c.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(c.dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (c *clientCertificates) client(t *testing.T, name string, names []string, uris ...*url.URL) tls.Certificate {
	return c.write(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: names, URIs: uris, NotBefore: c.cert.NotBefore, NotAfter: c.cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

const tlsPort = 3443

const byCertificateText = `version: 1
allow: [allowed.test, "*.allowed.test"]
listen: {proxy: ["tls:10.99.0.2:3443", "10.99.0.2:3128"], client_ca: clients.pem}
tls: {ca_dir: ca}
sandboxes:
  - {name: ci, token_file: ci.token}
  - {name: agent, certificate: agent.test}
  - {name: workload, certificate: "spiffe://test/workload"}
`

// overTLS connects to the proxy's TLS listener.
func (d *daemon) overTLS(t *testing.T, certificates ...tls.Certificate) dialer {
	t.Helper()
	config := &tls.Config{RootCAs: d.trusts(t), ServerName: lab.GatewayIPv4, Certificates: certificates}
	return func() (net.Conn, error) {
		raw, err := d.world.Sandbox.Dial("tcp", fmt.Sprintf("%s:%d", lab.GatewayIPv4, tlsPort))
		if err != nil {
			return nil, err
		}
		return tls.Client(raw, config), nil
	}
}

// TestSandboxesByCertificate tells clients of one TLS listener apart, curl too.
func TestSandboxesByCertificate(t *testing.T) {
	d := newDaemon(t, byCertificateText)
	signs := newClientCertificates(t, d.dir)
	agent, both := signs.client(t, "agent", []string{"agent.test"}), signs.client(t, "both", []string{"agent.test"}, &url.URL{Scheme: "spiffe", Host: "test", Path: "/workload"})
	workload, stranger := signs.client(t, "workload", nil, &url.URL{Scheme: "spiffe", Host: "test", Path: "/workload"}), signs.client(t, "stranger", []string{"stranger.test"})
	d.serve(t)
	ci := authorization("ci", "open-sesame")
	d.expectSandbox(t, "a DNS name", d.overTLS(t, agent), "", "agent")
	d.expectSandbox(t, "a SPIFFE ID", d.overTLS(t, workload), "", "workload")
	d.expectSandbox(t, "names of two sandboxes", d.overTLS(t, both), "", "")
	d.expectSandbox(t, "a name that is nobody's", d.overTLS(t, stranger), "", "")
	d.expectSandbox(t, "a name that is nobody's, with a token", d.overTLS(t, stranger), ci, "ci")
	d.expectSandbox(t, "a name with another's token", d.overTLS(t, agent), ci, "")
	d.expectSandbox(t, "without TLS", d.dial, authorization("agent", ""), "")
	dir, trust := t.TempDir(), d.world.origin.ca.file(t)
	curl := fmt.Sprintf("curl -sS --noproxy '' --cacert $LAB_CA -x https://%s:%d --proxy-cacert %s ", lab.GatewayIPv4, tlsPort, d.authorityFile())
	mark := d.marked(t)
	own := fmt.Sprintf("--proxy-cert %s/agent.pem --proxy-key %s/agent.key ", d.dir, d.dir)
	if out, err := d.shell(dir, trust, curl+own+"https://a.allowed.test/curl"); err != nil || !strings.Contains(out, "GET /curl") {
		t.Errorf("curl: %v, %s", err, out)
	}
	if r := d.is(t, mark); r.Sandbox != "agent" || r.Dst.Host != "a.allowed.test" {
		t.Errorf("curl is recorded as %+v", r)
	}
	if out, err := d.shell(dir, trust, curl+"https://a.allowed.test/curl"); err == nil {
		t.Errorf("curl without a certificate was answered: %s", out)
	}
}

// TestTLSListenerWithTokens needs no certificate where no authority is named.
func TestTLSListenerWithTokens(t *testing.T) {
	text := strings.Replace(byCertificateText, ", client_ca: clients.pem", "", 1)
	d := start(t, text[:strings.Index(text, "  - {name: agent")])
	curl := fmt.Sprintf("curl -sS --noproxy '' --cacert $LAB_CA --proxy-cacert %s -x https://%%s@%s:%d %%s", d.authorityFile(), lab.GatewayIPv4, tlsPort)
	dir, trust := t.TempDir(), d.world.origin.ca.file(t)
	for _, url := range []string{"https://a.allowed.test/curl", "http://a.allowed.test/curl"} {
		if out, err := d.shell(dir, trust, fmt.Sprintf(curl, "ci:open-sesame", url)); err != nil || !strings.Contains(out, "GET /curl") {
			t.Errorf("%s: %v, %s", url, err, out)
		}
	}
	if out, _ := d.shell(dir, trust, fmt.Sprintf(curl, "ci:wrong", "http://a.allowed.test/curl")); !strings.Contains(out, "unknown-sandbox") {
		t.Errorf("a wrong token is answered %s", out)
	}
	d.expectBody(t, d.overTLSBrowser(t), "GET", "https://a.allowed.test/go", nil, "GET /go")
}

// overTLSBrowser is Go's client with a proxy over TLS.
func (d *daemon) overTLSBrowser(t *testing.T) *http.Client {
	c := d.browser(nil)
	transport := c.Transport.(*http.Transport)
	config := transport.TLSClientConfig.Clone()
	config.RootCAs = d.trusts(t)
	config.RootCAs.AppendCertsFromPEM(d.world.origin.ca.pem())
	transport.TLSClientConfig = config
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "https", User: url.UserPassword("ci", "open-sesame"), Host: fmt.Sprintf("%s:%d", lab.GatewayIPv4, tlsPort)})
	return c
}

// TestReloadMovesSandboxes takes a sandbox of each kind out of the policy while
// it has a tunnel open, and gives what told it to another.
func TestReloadMovesSandboxes(t *testing.T) {
	socket := filepath.Join(sockets(t), "shared")
	listen := fmt.Sprintf(`listen: {proxy: ["unix:%s", "tls:10.99.0.2:3443", "10.99.0.2:3128"], client_ca: clients.pem}`, socket)
	text := "version: 1\nallow: [allowed.test]\ntls: {ca_dir: ca}\n" + listen + "\nsandboxes:\n"
	const before = "- {name: user, uid: [0]}\n- {name: net, source: [10.99.0.1]}\n- {name: cert, certificate: agent.test, source: [10.97.0.1]}\n"
	d := newDaemon(t, text+before)
	signs := newClientCertificates(t, d.dir)
	agent := signs.client(t, "agent", []string{"agent.test"})
	d.serve(t)
	other, err := neighbour()
	if err != nil {
		t.Fatal(err)
	}
	tlsAddress := fmt.Sprintf("%s:%d", lab.GatewayIPv4, tlsPort)
	config := &tls.Config{RootCAs: d.trusts(t), ServerName: lab.GatewayIPv4, Certificates: []tls.Certificate{agent}}
	dialers := map[string]dialer{
		"user": as(0, socket), "net": d.dial,
		"cert": func() (net.Conn, error) {
			raw, err := other.Dial("tcp", tlsAddress)
			if err != nil {
				return nil, err
			}
			return tls.Client(raw, config), nil
		},
	}
	open := map[string]net.Conn{}
	for name, dial := range dialers {
		_, open[name] = dial.ask(t, "")
		d.expectSandbox(t, name, dial, "", name)
	}
	d.edit(t, text+strings.NewReplacer("name: user", "name: user2", "name: net", "name: net2", "name: cert", "name: cert2").Replace(before))
	for name, c := range open {
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the tunnel of %s, which is no more, was not cut: %v", name, err)
		}
	}
	for name, dial := range dialers {
		d.expectSandbox(t, name+" by its new name", dial, "", name+"2")
	}
}

// serve starts a daemon that was prepared.
func (d *daemon) serve(t *testing.T) {
	t.Helper()
	d.run(t, exec.Command(Egressd.Path(), "serve", "--config", d.config))
	t.Cleanup(func() { d.stop(t) })
}
