package waysin

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
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
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// A dialer connects to the proxy as somebody.
type dialer func() (net.Conn, error)

func from(n *lab.Net, address string) dialer {
	return func() (net.Conn, error) { return n.Dial("tcp", address) }
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
	c.SetDeadline(time.Now().Add(world.Patience))
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
func is(t *testing.T, d *world.Daemon, mark int) (last record.Record) {
	t.Helper()
	opened := func() bool {
		records, _ := d.Log.Since(mark)
		for _, r := range records {
			if r.Kind == record.KindOpen {
				last = r
			}
		}
		return last.Kind != ""
	}
	if !world.Eventually(world.Settling, opened) {
		t.Error("nothing is recorded")
	}
	return last
}

// expectSandbox connects and looks for the name in the record.
func expectSandbox(t *testing.T, d *world.Daemon, says string, dial dialer, credentials, want string) record.Record {
	t.Helper()
	mark := d.LogMark(t)
	head, _ := dial.ask(t, credentials)
	r := is(t, d, mark)
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
	d := world.Start(t, bySourceText)
	other, err := world.Neighbour()
	if err != nil {
		t.Fatal(err)
	}
	near, next := from(d.World.Sandbox, d.Address()), from(other, d.Address())
	six := from(d.World.Sandbox, net.JoinHostPort(lab.GatewayIPv6, fmt.Sprint(d.Port)))
	right := world.Authorization("next", "another-secret")
	first := expectSandbox(t, d, "the one", near, "", "near")
	second := expectSandbox(t, d, "the other, while the one is there", next, right, "next")
	if !strings.HasPrefix(first.Src, "10.99.0.1:") || !strings.HasPrefix(second.Src, lab.NeighbourIPv4+":") {
		t.Errorf("recorded from %s and %s", first.Src, second.Src)
	}
	expectSandbox(t, d, "the one over IPv6", six, "", "near")
	expectSandbox(t, d, "the other without its token", next, "", "")
	expectSandbox(t, d, "the one with the other's token", near, right, "")
	expectSandbox(t, d, "the other's token with another name", next, world.Authorization("ci", "open-sesame"), "")
	if d.Log.Holds("another-secret") || d.Log.Holds("open-sesame") {
		t.Error("a token stands in the log")
	}
}

// ids are what differs between two refusals.
var ids = regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{10}\b`)

// TestNobodyLearnsWhoExists tries tokens and names of others, from a sandbox
// that is placed by its address and from one that is not, and compares what is
// answered and recorded with what a name that nobody has gets.
func TestNobodyLearnsWhoExists(t *testing.T) {
	d := world.Start(t, strings.Replace(bySourceText, "  - {name: wide, source: [10.96.0.0/12]}\n", "", 1))
	other, err := world.Neighbour()
	if err != nil {
		t.Fatal(err)
	}
	next := world.Authorization("next", "another-secret") // from elsewhere it is no use
	tries := []string{
		world.Authorization("nobody", "wrong"), world.Authorization("ci", "wrong"), world.Authorization("ci", "open-sesame"), next,
	}
	for says, dial := range map[string]dialer{"placed": from(d.World.Sandbox, d.Address()), "placed, and needs a token": from(other, d.Address())} {
		var answers, records []string
		least := 200 * time.Millisecond
		for i, credentials := range tries {
			if credentials == next && strings.Contains(says, "needs") {
				credentials = world.Authorization("next", "wrong")
			}
			mark, began := d.LogMark(t), time.Now()
			head, _ := dial.ask(t, credentials)
			if took := time.Since(began); took < least {
				t.Errorf("%s: try %d was answered within %v", says, i, took)
			}
			least *= 2 // the wait grows with each, whatever is tried
			answers = append(answers, ids.ReplaceAllString(head, "ID"))
			records = append(records, essence(t, d, mark))
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
func essence(t *testing.T, d *world.Daemon, mark int) string {
	t.Helper()
	r := is(t, d, mark)
	if all, _ := d.Log.Since(mark); len(all) != 1 {
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
`, socket, lab.GatewayIPv4, world.ProxyPort)
	d := world.Start(t, policy)
	r := expectSandbox(t, d, "root", as(0, socket), "", "root")
	if exe, _ := os.Executable(); r.Process == nil || r.Process.PID != os.Getpid() || r.Process.Exe != exe {
		t.Errorf("recorded %+v of process %d, %s", r.Process, os.Getpid(), exe)
	}
	expectSandbox(t, d, "root with another's token", as(0, socket), world.Authorization("ci", "open-sesame"), "")
	expectSandbox(t, d, "over TCP", d.Dial, "", "")
	expectSandbox(t, d, "over TCP with the name of a user", d.Dial, world.Authorization("user", ""), "")
	if c, err := as(1000, socket)(); errors.Is(err, syscall.EINVAL) {
		t.Log("the lab has no second user: it is not run by root")
		d.Edit(t, strings.Replace(policy, "uid: [0]", "uid: [7]", 1))
		d.ExpectPolicy(t, func(r record.Record) bool { return strings.Contains(r.Note, "reloaded") })
		expectSandbox(t, d, "root, once it is not listed", as(0, socket), "", "")
		return
	} else if c != nil {
		c.Close()
	}
	expectSandbox(t, d, "a user", as(1000, socket), "", "user")
	expectSandbox(t, d, "another of the same sandbox", as(1001, socket), "", "user")
	expectSandbox(t, d, "a user who is nobody's", as(1002, socket), "", "")
	expectSandbox(t, d, "a user who is nobody's, with a token", as(1002, socket), world.Authorization("ci", "open-sesame"), "ci")
	expectSandbox(t, d, "a user with another's token", as(1000, socket), world.Authorization("ci", "open-sesame"), "")
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
func overTLS(t *testing.T, d *world.Daemon, certificates ...tls.Certificate) dialer {
	t.Helper()
	config := &tls.Config{RootCAs: d.Trusts(t), ServerName: lab.GatewayIPv4, Certificates: certificates}
	return func() (net.Conn, error) {
		raw, err := d.World.Sandbox.Dial("tcp", fmt.Sprintf("%s:%d", lab.GatewayIPv4, tlsPort))
		if err != nil {
			return nil, err
		}
		return tls.Client(raw, config), nil
	}
}

// TestSandboxesByCertificate tells clients of one TLS listener apart, curl too.
func TestSandboxesByCertificate(t *testing.T) {
	d := world.NewDaemon(t, byCertificateText)
	signs := newClientCertificates(t, d.Dir)
	agent, both := signs.client(t, "agent", []string{"agent.test"}), signs.client(t, "both", []string{"agent.test"}, &url.URL{Scheme: "spiffe", Host: "test", Path: "/workload"})
	workload, stranger := signs.client(t, "workload", nil, &url.URL{Scheme: "spiffe", Host: "test", Path: "/workload"}), signs.client(t, "stranger", []string{"stranger.test"})
	serve(t, d)
	ci := world.Authorization("ci", "open-sesame")
	expectSandbox(t, d, "a DNS name", overTLS(t, d, agent), "", "agent")
	expectSandbox(t, d, "a SPIFFE ID", overTLS(t, d, workload), "", "workload")
	expectSandbox(t, d, "names of two sandboxes", overTLS(t, d, both), "", "")
	expectSandbox(t, d, "a name that is nobody's", overTLS(t, d, stranger), "", "")
	expectSandbox(t, d, "a name that is nobody's, with a token", overTLS(t, d, stranger), ci, "ci")
	expectSandbox(t, d, "a name with another's token", overTLS(t, d, agent), ci, "")
	expectSandbox(t, d, "without TLS", d.Dial, world.Authorization("agent", ""), "")
	dir, trust := t.TempDir(), d.World.Origin.Ca.File(t)
	curl := fmt.Sprintf("curl -sS --noproxy '' --cacert $LAB_CA -x https://%s:%d --proxy-cacert %s ", lab.GatewayIPv4, tlsPort, d.AuthorityFile())
	mark := d.LogMark(t)
	own := fmt.Sprintf("--proxy-cert %s/agent.pem --proxy-key %s/agent.key ", d.Dir, d.Dir)
	if out, err := d.Shell(dir, trust, curl+own+"https://a.allowed.test/curl"); err != nil || !strings.Contains(out, "GET /curl") {
		t.Errorf("curl: %v, %s", err, out)
	}
	if r := is(t, d, mark); r.Sandbox != "agent" || r.Dst.Host != "a.allowed.test" {
		t.Errorf("curl is recorded as %+v", r)
	}
	if out, err := d.Shell(dir, trust, curl+"https://a.allowed.test/curl"); err == nil {
		t.Errorf("curl without a certificate was answered: %s", out)
	}
}

// TestTLSListenerWithTokens needs no certificate where no authority is named.
func TestTLSListenerWithTokens(t *testing.T) {
	text := strings.Replace(byCertificateText, ", client_ca: clients.pem", "", 1)
	d := world.Start(t, text[:strings.Index(text, "  - {name: agent")])
	curl := fmt.Sprintf("curl -sS --noproxy '' --cacert $LAB_CA --proxy-cacert %s -x https://%%s@%s:%d %%s", d.AuthorityFile(), lab.GatewayIPv4, tlsPort)
	dir, trust := t.TempDir(), d.World.Origin.Ca.File(t)
	for _, url := range []string{"https://a.allowed.test/curl", "http://a.allowed.test/curl"} {
		if out, err := d.Shell(dir, trust, fmt.Sprintf(curl, "ci:open-sesame", url)); err != nil || !strings.Contains(out, "GET /curl") {
			t.Errorf("%s: %v, %s", url, err, out)
		}
	}
	if out, _ := d.Shell(dir, trust, fmt.Sprintf(curl, "ci:wrong", "http://a.allowed.test/curl")); !strings.Contains(out, "unknown-sandbox") {
		t.Errorf("a wrong token is answered %s", out)
	}
	d.ExpectBody(t, overTLSBrowser(t, d), "GET", "https://a.allowed.test/go", nil, "GET /go")
}

// overTLSBrowser is Go's client with a proxy over TLS.
func overTLSBrowser(t *testing.T, d *world.Daemon) *http.Client {
	c := d.HTTPClient(nil)
	transport := c.Transport.(*http.Transport)
	config := transport.TLSClientConfig.Clone()
	config.RootCAs = d.Trusts(t)
	config.RootCAs.AppendCertsFromPEM(d.World.Origin.Ca.PEM())
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
	d := world.NewDaemon(t, text+before)
	signs := newClientCertificates(t, d.Dir)
	agent := signs.client(t, "agent", []string{"agent.test"})
	serve(t, d)
	other, err := world.Neighbour()
	if err != nil {
		t.Fatal(err)
	}
	tlsAddress := fmt.Sprintf("%s:%d", lab.GatewayIPv4, tlsPort)
	config := &tls.Config{RootCAs: d.Trusts(t), ServerName: lab.GatewayIPv4, Certificates: []tls.Certificate{agent}}
	dialers := map[string]dialer{
		"user": as(0, socket), "net": d.Dial,
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
		expectSandbox(t, d, name, dial, "", name)
	}
	d.Edit(t, text+strings.NewReplacer("name: user", "name: user2", "name: net", "name: net2", "name: cert", "name: cert2").Replace(before))
	for name, c := range open {
		c.SetReadDeadline(time.Now().Add(world.Patience))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the tunnel of %s, which is no more, was not cut: %v", name, err)
		}
	}
	for name, dial := range dialers {
		expectSandbox(t, d, name+" by its new name", dial, "", name+"2")
	}
}

// serve starts a daemon that was prepared.
func serve(t *testing.T, d *world.Daemon) {
	t.Helper()
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
}
