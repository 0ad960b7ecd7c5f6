package waysin

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/record"
	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
)

// A fakeVercel plays the two parts of Vercel by their documentation: the issuer, which has its keys at a URL, and the
// firewall, which sends a sandbox's requests to forwardURL. Nothing here has seen the real ones.
type fakeVercel struct {
	*httptest.Server
	daemon *world.Daemon
	key    jwk.Key
	asked  atomic.Int32 // for the keys
}

const (
	vercelIssuer = "https://oidc.vercel.com/acme"
	forwardURL   = "https://egress.example.com/hook"
)

// newPlatformKey returns a private key that signs tokens.
func newPlatformKey(t *testing.T) jwk.Key {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := jwk.Import(private)
	if err != nil {
		t.Fatal(err)
	}
	if err := key.Set(jwk.KeyIDKey, "key-1"); err != nil {
		t.Fatal(err)
	}
	return key
}

// newFakeVercel listens in the gateway's network, on loopback.
func newFakeVercel(t *testing.T, d *world.Daemon) *fakeVercel {
	t.Helper()
	v := &fakeVercel{daemon: d, key: newPlatformKey(t)}
	public, err := v.key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	v.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.asked.Add(1)
		if r.URL.Path != "/acme/.well-known/jwks" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{public}})
	}))
	v.Listener.Close()
	if v.Listener, err = d.World.Gateway.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	pki := testpki.New(t)
	certificate := pki.Server(t, nil, "localhost")
	v.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	v.StartTLS()
	t.Cleanup(v.Close)
	root := certificate.Certificate[len(certificate.Certificate)-1]
	d.PutFile(t, "issuer.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root})))
	return v
}

// keysURL is where the keys are. Its host is a name, as that of the issuer is.
func (v *fakeVercel) keysURL() string {
	_, port, _ := net.SplitHostPort(v.Listener.Addr().String())
	return "https://localhost:" + port + "/acme/.well-known/jwks"
}

// token returns one for a sandbox, with some claims changed.
func (v *fakeVercel) token(t *testing.T, sandbox string, change map[string]any) string {
	t.Helper()
	token := jwt.New()
	set := func(claims map[string]any) {
		for name, value := range claims {
			if err := token.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	set(map[string]any{
		"iss": vercelIssuer, "aud": forwardURL, "iat": time.Now(), "nbf": time.Now(), "exp": time.Now().Add(time.Hour),
		"team_id": "team_acme", "project_id": "prj_1", "sandbox_id": sandbox, "sandbox_name": "sandbox-" + sandbox,
	})
	set(change)
	signed, err := jwt.Sign(token, jwt.WithKey(jwa.RS256(), v.key))
	if err != nil {
		t.Fatal(err)
	}
	return string(signed)
}

// forward is send, which has to get an answer.
func (v *fakeVercel) forward(t *testing.T, token, method, to, body string) (status int, said string) {
	t.Helper()
	status, said, err := v.send(token, method, to, body)
	if err != nil {
		t.Fatal(err)
	}
	return status, said
}

// send sends what the firewall makes of a sandbox's request.
func (v *fakeVercel) send(token, method, to, body string) (status int, said string, err error) {
	u, err := url.Parse(to)
	if err != nil {
		return 0, "", err
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	at := fmt.Sprintf("http://%s:%d/hook%s", lab.GatewayIPv4, world.ForwardedPort, u.RequestURI())
	r, err := http.NewRequest(method, at, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Host = "egress.example.com"
	for name, value := range map[string]string{
		"vercel-forwarded-host": u.Hostname(), "vercel-forwarded-scheme": u.Scheme, "vercel-forwarded-port": port,
		"vercel-forwarded-path": u.RequestURI(), "vercel-sandbox-oidc-token": token,
	} {
		r.Header.Set(name, value)
	}
	client := &http.Client{Timeout: world.Patience, Transport: &http.Transport{
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			return v.daemon.World.Sandbox.Dial(network, address)
		},
		DisableKeepAlives: true,
	}}
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

const forwardedText = `version: 1
listen: {open_to_network: true, proxy: ["%s:%d", "[%s]:%d"], forwarded: ["%[1]s:%[5]d"], admin: "%[6]s"}
tls: {extra_roots: [lab.pem, issuer.pem]}
allow:
  - {host: a.allowed.test, methods: [GET], paths: ["/public/**"]}
  - b.allowed.test
  - {host: api.allowed.test, inject: {header: Authorization, value: "Bearer {}", file: api.secret}}
  - "allowed.test:80"
ask: [c.allowed.test]
sandboxes:
  - name: "vercel-{id}"
    deny: [b.allowed.test]
    oidc: {issuer: %[7]q, keys: %[8]q, audience: %[9]q, claims: {team_id: team_acme}, id: sandbox_id}
`

// TestRequestsThatAPlatformForwards goes from a request of the fake of Vercel to the upstream and the log.
func TestRequestsThatAPlatformForwards(t *testing.T) {
	d := world.NewDaemon(t, "version: 1")
	v := newFakeVercel(t, d)
	text := fmt.Sprintf(forwardedText, lab.GatewayIPv4, world.ProxyPort, lab.GatewayIPv6, world.ProxyPort, world.ForwardedPort, world.AdminSocket, vercelIssuer, v.keysURL(), forwardURL)
	d.WriteConfig(t, text)
	d.Run(t, exec.Command(world.Egressd.Path(), "serve", "--config", d.Config))
	t.Cleanup(func() { d.Stop(t) })
	listening := fmt.Sprintf("listening on %s:%d (forwarded)", lab.GatewayIPv4, world.ForwardedPort)
	if !world.Eventually(world.Settling, func() bool { return strings.Contains(d.Output.String(), listening) }) {
		t.Errorf("said %s", d.Output.String())
	}
	if v.asked.Load() != 0 {
		t.Error("keys were fetched before a token came")
	}
	one, two := v.token(t, "sbx_1", nil), v.token(t, "sbx_2", nil)
	heard := d.World.Origin.Heard.Mark()
	denied := ""
	for _, row := range []struct {
		says, token, method, to string
		status                  int
		has, sandbox, class     string
	}{
		{"https", one, "GET", "https://a.allowed.test/public/x?q=1", 200, "host=a.allowed.test GET /public/x", "vercel-sbx_1", ""},
		{"another sandbox", two, "GET", "https://a.allowed.test/public/x", 200, "GET /public/x", "vercel-sbx_2", ""},
		{"http", one, "POST", "http://allowed.test/count", 200, "origin received 4 bytes", "vercel-sbx_1", ""},
		{"a credential", one, "GET", "https://api.allowed.test/x", 200, "GET /x", "vercel-sbx_1", ""},
		{"a path that no rule allows", one, "GET", "https://a.allowed.test/private", 403, "path-denied", "vercel-sbx_1", "path-denied"},
		{"a method that no rule allows", one, "POST", "https://a.allowed.test/public/x", 403, "method-denied", "vercel-sbx_1", "method-denied"},
		{"a host that the template denies", two, "GET", "https://b.allowed.test/", 403, "rule-deny", "vercel-sbx_2", "rule-deny"},
		{"a host that no rule allows", one, "GET", "https://denied.test/", 403, "default-deny", "vercel-sbx_1", "default-deny"},
		{"a private address", one, "GET", "http://10.0.0.5/", 403, "address-denied", "vercel-sbx_1", "address-denied"},
		{"the host itself", one, "GET", "http://127.0.0.1:3128/", 403, "address-denied", "vercel-sbx_1", "address-denied"},
		{"no token", "", "GET", "https://a.allowed.test/public/x", 403, "unknown-sandbox", "", "unknown-sandbox"},
		{"a token for another forwardURL", v.token(t, "sbx_1", map[string]any{"aud": forwardURL + "2"}), "GET", "https://a.allowed.test/public/x", 403, "unknown-sandbox", "", "unknown-sandbox"},
		{"another team's token", v.token(t, "sbx_1", map[string]any{"team_id": "team_evil"}), "GET", "https://a.allowed.test/public/x", 403, "unknown-sandbox", "", "unknown-sandbox"},
		{"the issuer of everybody", v.token(t, "sbx_1", map[string]any{"iss": "https://oidc.vercel.com"}), "GET", "https://a.allowed.test/public/x", 403, "an issuer that no sandbox lists", "", "unknown-sandbox"},
		{"an old token", v.token(t, "sbx_1", map[string]any{"exp": time.Now().Add(-2 * time.Minute)}), "GET", "https://a.allowed.test/public/x", 403, "has expired", "", "unknown-sandbox"},
		{"a spoiled token", one[:len(one)-8] + "AAAAAAAA", "GET", "https://a.allowed.test/public/x", 403, "signature is wrong", "", "unknown-sandbox"},
	} {
		d.Pacing.Pace(row.class, world.Singles)
		mark := d.LogMark(t)
		status, said := v.forward(t, row.token, row.method, row.to, map[string]string{"POST": "abcd"}[row.method])
		if status != row.status || !strings.Contains(said, row.has) {
			t.Errorf("%s: %d %s", row.says, status, said)
		}
		var last record.Record
		decided := func() bool {
			all, _ := d.Log.Since(mark)
			for _, r := range all {
				if r.Decision != nil && r.Kind != record.KindDNS {
					last = r
				}
			}
			return last.Decision != nil
		}
		if !world.Eventually(world.Settling, decided) || last.Sandbox != row.sandbox || last.Via != "forwarded" || last.Decision.Class != row.class {
			t.Errorf("%s: recorded sandbox %q, via %q, %+v", row.says, last.Sandbox, last.Via, last.Decision)
		}
		if row.class == "default-deny" {
			denied = last.Flow
		}
	}
	if n := v.asked.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
	up := d.World.Origin.Heard.Since(heard)
	if !strings.Contains(up, "GET /public/x?q=1 HTTP/1.1\r\nHost: a.allowed.test\r\n") || !strings.Contains(up, "Authorization: Bearer "+world.RealSecret) {
		t.Errorf("the upstream heard %s", up)
	}
	if low := strings.ToLower(up); strings.Contains(low, "vercel") || strings.Contains(low, "oidc") || strings.Contains(up, one) {
		t.Errorf("the upstream heard of the platform: %s", up)
	}

	command := func(want string, words ...string) {
		t.Helper()
		if r := d.RunCommand(t, nil, append(words, "--config", d.Config)...); !strings.Contains(r.Out+r.Talk, want) {
			t.Errorf("egressd %s printed\n%s%s", strings.Join(words, " "), r.Out, r.Talk)
		}
	}
	command("vercel-sbx_1", "why", denied)
	command("a.allowed.test", "log", "sandbox:vercel-sbx_2", "via:forwarded")
	command("deny", "check", "--sandbox", "vercel-any", "https://b.allowed.test/")
	command("its platform sends its requests to listen.forwarded", "env", "--sandbox", "vercel-any")
	command("is allowed to sandbox vercel-sbx_1", "allow", "d.allowed.test", "--sandbox", "vercel-sbx_1", "--for", "1h")
	if status, said := v.forward(t, one, "GET", "https://d.allowed.test/x", ""); status != 200 {
		t.Errorf("what was allowed for an hour: %d %s", status, said)
	}
	if status, said := v.forward(t, two, "GET", "https://d.allowed.test/x", ""); status != 403 {
		t.Errorf("to one sandbox alone: %d %s", status, said)
	}
	asked := make(chan string)
	go func() {
		status, said, err := v.send(one, "GET", "https://c.allowed.test/x", "")
		asked <- fmt.Sprint(status, " ", said, " ", err)
	}()
	var question struct{ ID, Sandbox string }
	held := func() bool {
		r := d.RunCommand(t, nil, "questions", "--json", "--config", d.Config)
		return json.Unmarshal([]byte(r.Out), &question) == nil
	}
	if !world.Eventually(world.Settling, held) || question.Sandbox != "vercel-sbx_1" {
		t.Errorf("asked %+v", question)
	}
	command("c.allowed.test:443", "approve", question.ID)
	if said := <-asked; !strings.HasPrefix(said, "200 ") {
		t.Errorf("what was approved: %s", said)
	}

	v.Close() // the keys that were fetched stay
	d.Edit(t, strings.Replace(text, "vercel-{id}", "acme-{id}", 1))
	if !world.Eventually(world.Settling, func() bool { return strings.Contains(d.Output.String(), "policy reloaded") }) { // the record comes before the sandboxes
		t.Errorf("said %s", d.Output.String())
	}
	mark := d.LogMark(t)
	if status, said := v.forward(t, two, "GET", "https://a.allowed.test/public/y", ""); status != 200 {
		t.Errorf("after a reload, and without the issuer: %d %s", status, said)
	}
	all, _ := d.Log.Since(mark)
	if len(all) == 0 || all[0].Sandbox != "acme-sbx_2" {
		t.Errorf("recorded %+v", all)
	}
	segments, err := filepath.Glob(filepath.Join(d.Log.Dir, "*.log"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	for _, path := range segments {
		written, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if signature := one[strings.LastIndexByte(one, '.')+1:]; bytes.Contains(written, []byte(signature)) || bytes.Contains(written, []byte(one[:40])) {
			t.Errorf("%s holds a token", path)
		}
	}
}
