package daemon

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/record"
	"github.com/miekg/dns"
)

// A regoWorld is a daemon that serves a policy in Rego on loopback, a name server
// that has every name there, and what it says. The organisation's file is
// above/organisation.yaml, where a test writes one.
type regoWorld struct {
	dir   string
	said  chan string
	proxy string
	*Daemon
}

// serveRego starts a daemon with lines of a policy file and the files of its folder
// "policy".
func serveRego(t *testing.T, lines string, files map[string]string) *regoWorld {
	t.Helper()
	w := &regoWorld{dir: t.TempDir(), said: make(chan string, 100)}
	for name, text := range files {
		w.write(t, name, text)
	}
	w.write(t, "egressd.yaml", fmt.Sprintf("version: 1\nlisten: {proxy: [\"127.0.0.1:0\"]}\naudit: {dir: audit}\ntls: {ca_dir: ca, extra_roots: [roots.pem]}\nupstream: {dns: [%q]}\nunsafe_allow: [\"127.0.0.1:*\"]\n%s", nameServer(t), lines))
	talk, talks := io.Pipe()
	go func() {
		for said := bufio.NewScanner(talk); said.Scan(); {
			w.said <- said.Text()
		}
	}()
	t.Cleanup(func() { talks.Close() })
	var err error
	if w.Daemon, err = New(talks, filepath.Join(w.dir, "egressd.yaml"), Tailoring{above: filepath.Join(w.dir, "above", "organisation.yaml")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Daemon.Close)
	w.reloads.trees = 20 * time.Millisecond
	if err := w.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() {
		w.follow(ctx, nil)
		close(followed)
	}()
	t.Cleanup(func() {
		cancel()
		<-followed
		w.stop(0)
	})
	w.proxy = w.listeners.listening[0].Addr().String()
	return w
}

// TestASecondDaemonIsToldWhoHasTheLog starts another one with the same policy file.
func TestASecondDaemonIsToldWhoHasTheLog(t *testing.T) {
	w := serveRego(t, "", nil)
	_, err := New(io.Discard, w.Path, Tailoring{})
	var hinted *hint.Error
	if !errors.As(err, &hinted) {
		t.Fatalf("%v", err)
	}
	me := strconv.Itoa(os.Getpid())
	if !strings.HasSuffix(err.Error(), "process "+me) || !strings.HasPrefix(hinted.Hint, "kill "+me+", ") || !strings.Contains(hinted.Hint, w.Path) {
		t.Errorf("error: %v\nhint: %s", err, hinted.Hint)
	}
}

func (w *regoWorld) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil { // as editors do
		t.Fatal(err)
	}
}

// hear waits for the daemon to say something.
func (w *regoWorld) hear(t *testing.T, want string) {
	t.Helper()
	for {
		select {
		case line := <-w.said:
			if strings.Contains(line, want) {
				return
			}
		case <-t.Context().Done():
			t.Fatalf("the daemon did not say %q", want)
		}
	}
}

// nameServer answers every question for an address with 127.0.0.1.
func nameServer(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)}}
		}
		w.WriteMsg(m)
	})}
	served := make(chan struct{})
	go func() {
		server.ActivateAndServe()
		close(served)
	}()
	t.Cleanup(func() {
		conn.Close()
		<-served
	})
	return conn.LocalAddr().String()
}

// upstream accepts connections and says "hello" on each.
func upstream(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// connect asks for a tunnel and returns the status and what came through it, or
// the body of the refusal.
func (w *regoWorld) connect(t *testing.T, to string) (status int, text string) {
	t.Helper()
	network := "tcp"
	if strings.HasPrefix(w.proxy, "/") {
		network = "unix"
	}
	c, err := net.Dial(network, w.proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, &http.Request{Method: http.MethodGet})
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body)
	}
	carried, _ := io.ReadAll(r)
	return answer.StatusCode, string(carried)
}

// record returns the newest record of which is holds.
func (w *regoWorld) record(t *testing.T, is func(*record.Record) bool) (found record.Record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "audit", "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var r record.Record
		if json.Unmarshal(line, &r) == nil && is(&r) {
			found = r
		}
	}
	return found
}

const someRego = `package egress

allow contains {"rule": "works"} if host.matches(input.destination.host, "allowed.test")

allow contains {"rule": "everything"} if host.matches(input.destination.host, "*.test")

deny contains {"rule": "no-uploads", "reason": "uploads need a ticket"} if host.matches(input.destination.host, "uploads.test")
`

func TestServeDecidesByRego(t *testing.T) {
	w := serveRego(t, "rego: [policy]\nallow: [\"uploads.test:*\"]\ndeny: [\"listed.test:*\"]\n", map[string]string{"policy/egress.rego": someRego})
	port := upstream(t)
	for _, row := range []struct {
		host   string
		status int
		says   string
		rule   string
	}{
		{"allowed.test", 200, "hello", "everything"},
		{"uploads.test", 403, "uploads need a ticket", "no-uploads"},
		{"listed.test", 403, `"rule":"deny[0]"`, "deny[0]"},
		{"evil.example", 403, `"class":"default-deny"`, "default"},
	} {
		status, text := w.connect(t, row.host+":"+port)
		if status != row.status || row.says == "hello" && text != row.says || !strings.Contains(text, row.rule) && status == 403 {
			t.Errorf("%s: %d %s", row.host, status, text)
		}
		r := w.record(t, func(r *record.Record) bool { return r.Kind == record.KindOpen && r.Dst.Host == row.host })
		if r.Decision == nil || r.Decision.Rule != row.rule {
			t.Errorf("%s: the record's decision is %+v, want rule %s", row.host, r.Decision, row.rule)
		}
	}
	if _, err := os.Stat(filepath.Join(w.dir, "ca")); err == nil {
		t.Error("an authority was made, and no rule looks at requests")
	}
}

// TestRegoThatLooksAtRequestsInspects has a tunnel inspected because of a rule in
// Rego alone.
func TestRegoThatLooksAtRequestsInspects(t *testing.T) {
	far := secureUpstream(t)
	w := serveRego(t, "rego: [policy]\n", map[string]string{"policy/egress.rego": `package egress

allow contains {"rule": "read-only"} if {
	host.matches(input.destination.host, "api.test")
	input.http.method == "GET"
	path.matches(input.http.path, "/items/**")
}
`, "roots.pem": far.roots})
	client := w.clientOf(t)
	for _, row := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/items/1", 200, "GET /items/1"},
		{"POST", "/items/1", 403, "egress_denied"},
		{"GET", "/other", 403, "egress_denied"},
		{"GET", "/items/%2e%2e/other", 403, "egress_denied"},
	} {
		request, err := http.NewRequest(row.method, "https://api.test:"+far.port+row.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != row.status || !strings.Contains(string(body), row.body) {
			t.Errorf("%s %s: %d %s", row.method, row.path, answer.StatusCode, body)
		}
	}
	r := w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindRequest && r.HTTP.Path == "/items/1" && r.HTTP.Method == "GET"
	})
	if r.Decision == nil || r.Decision.Rule != "read-only" || r.Decision.Layer != "organisation" {
		t.Errorf("the record of the request is %+v", r)
	}
}

type secured struct{ port, roots string }

// secureUpstream is a server for api.test that says what it was asked for.
func secureUpstream(t *testing.T) secured {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "far")
	authority, err := certs.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Leaf("api.test")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Method, r.URL.Path)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	return secured{port, string(authority.PEM())}
}

// clientOf is a program that uses the proxy and trusts its authority.
func (w *regoWorld) clientOf(t *testing.T) *http.Client {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "ca", certs.CertificateFile))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	through := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: w.proxy}), TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(through.CloseIdleConnections)
	return &http.Client{Transport: through}
}

// TestAnEditOfRegoTakesEffect edits files in ways that are seen, and in some that
// change nothing.
func TestAnEditOfRegoTakesEffect(t *testing.T) {
	w := serveRego(t, "rego: [policy]\n", map[string]string{"policy/egress.rego": someRego})
	port := upstream(t)
	before := w.Gate.Digest()

	w.write(t, "policy/egress.rego", strings.Replace(someRego, "allow contains", "alow contains {\"rule\": 1}\nallow contains", 1)+"\ndeny contains x if x := input.hots\n")
	w.hear(t, "policy not reloaded, the one before stays in force: ")
	if status, _ := w.connect(t, "allowed.test:"+port); status != 200 || w.Gate.Digest() != before {
		t.Error("a broken edit changed something")
	}
	r := w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindPolicy && strings.Contains(r.Note, "rejected")
	})
	if !strings.Contains(r.Note, "egress.rego:") || r.Decision.Policy != before {
		t.Errorf("the record of the broken edit is %+v", r)
	}

	w.write(t, "policy/egress.rego", someRego)
	w.hear(t, "policy reloaded")
	w.write(t, "policy/below/deny.rego", "package egress\ndeny contains {\"rule\": \"closed\"} if input.destination.host == \"allowed.test\"\n")
	w.hear(t, "policy reloaded")
	if status, text := w.connect(t, "allowed.test:"+port); status != 403 || !strings.Contains(text, "closed") {
		t.Errorf("a file in a new folder: %d %s", status, text)
	}
	w.write(t, "policy/below/deny.rego", "package egress\ndeny contains {\"rule\": \"closed-too\"} if input.destination.host == \"allowed.test\"\n")
	w.hear(t, "policy reloaded")
	if err := os.RemoveAll(filepath.Join(w.dir, "policy", "below")); err != nil {
		t.Fatal(err)
	}
	w.hear(t, "policy reloaded")
	if status, _ := w.connect(t, "allowed.test:"+port); status != 200 || w.Gate.Digest() != before {
		t.Error("a folder that was removed still counts")
	}
}

// TestRegoThatIsGoneOpensNothing takes the files away under "default: allow".
func TestRegoThatIsGoneOpensNothing(t *testing.T) {
	w := serveRego(t, "default: allow\nrego: [policy]\n", map[string]string{"policy/egress.rego": someRego})
	port := upstream(t)
	if err := os.Rename(filepath.Join(w.dir, "policy"), filepath.Join(w.dir, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	w.hear(t, "policy not reloaded")
	if status, text := w.connect(t, "uploads.test:"+port); status != 403 || !strings.Contains(text, "no-uploads") {
		t.Errorf("%d %s", status, text)
	}
	if err := os.Rename(filepath.Join(w.dir, "elsewhere"), filepath.Join(w.dir, "policy")); err != nil {
		t.Fatal(err)
	}
	w.hear(t, "policy reloaded")
	w.write(t, "policy/egress.rego", strings.ReplaceAll(someRego, "no-uploads", "still-none"))
	w.hear(t, "policy reloaded")
	if status, text := w.connect(t, "uploads.test:"+port); status != 403 || !strings.Contains(text, "still-none") {
		t.Errorf("an edit in the folder that came back: %d %s", status, text)
	}
}
