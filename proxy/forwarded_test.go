package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

const forwardedPolicy = `version: 1
allow:
  - {host: "allowed.test:*", methods: [GET, POST], paths: ["/public/**"], id: public}
  - "opaque.test:*"
  - {host: "other.test:*", inject: {header: "X-Key", file: key}, id: keyed}
unsafe_allow: ["127.0.0.1:*"]
listen: {forwarded: ["127.0.0.1:3180"]}
sandboxes:
  - {name: "vercel-{id}", deny: ["opaque.test:*"], oidc: {issuer: "https://issuer.test", keys: k, audience: a, claims: {team_id: t}, id: sandbox_id}}
  - {name: one, oidc: {issuer: "https://issuer.test", keys: k, audience: a, claims: {team_id: u}}}
`

// A forwardedWorld has a listener for the requests of a platform. Its tokens are words, which stand for claims: package oidc has
// the tests of real ones.
type forwardedWorld struct {
	*world
	pki      *pki
	at       string
	serving  sync.WaitGroup
	mu       sync.Mutex
	verified []string // tokens
}

const realKey = "0123456789abcdef0123456789abcdef"

func newForwardedWorld(t *testing.T) *forwardedWorld {
	t.Helper()
	authority, err := certs.Create(t.TempDir() + "/ca")
	if err != nil {
		t.Fatal(err)
	}
	w := &forwardedWorld{pki: newPKI(t)}
	t.Cleanup(w.serving.Wait) // after the server has been shut down
	key, err := secret.New(secret.Options{Header: "X-Key", Text: []byte(realKey)})
	if err != nil {
		t.Fatal(err)
	}
	with := inspect.Inspection{Authority: authority, Roots: w.pki.Pool,
		Credential: func(rule, _ string, _ policy.Destination) *secret.Secret {
			return map[string]*secret.Secret{"keyed": key}[rule]
		}}
	issued := func(team, id string) *sandbox.Issued {
		return &sandbox.Issued{Issuer: "https://issuer.test", Audience: "a", Claims: map[string]string{"team_id": team}, ID: id}
	}
	w.world = newWorldOf(t, forwardedPolicy, []sandbox.Entry{{Name: "vercel-{id}", Issued: issued("t", "sandbox_id")}, {Name: "one", Issued: issued("u", "")}}, nil, func(s *Server) {
		s.VerifyToken = w.verify
		s.Inspect(&with)
	})
	w.at = w.forward(t, nil)
	return w
}

// forward opens one more listener.
func (w *forwardedWorld) forward(t *testing.T, over func() *TLSListener) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.serving.Go(func() { w.ServeForwarded(l, "forwarded", over) })
	return l.Addr().String()
}

var errNoGoodToken = errors.New("the token is bad")

// verify takes "TEAM SANDBOX" for a token, with a plus for the space.
func (w *forwardedWorld) verify(_ context.Context, token string) (*sandbox.Claims, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.verified = append(w.verified, token)
	team, id, ok := strings.Cut(token, "+")
	if !ok {
		return nil, errNoGoodToken
	}
	return &sandbox.Claims{Issuer: "https://issuer.test", Audience: []string{"a"}, Values: map[string]string{"team_id": team, "sandbox_id": id}}, nil
}

// seen returns the tokens that were to be verified.
func (w *forwardedWorld) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.verified)
}

func (w *forwardedWorld) dialForwarded(t *testing.T) *testClient {
	t.Helper()
	c, err := net.Dial("tcp", w.at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return &testClient{c, bufio.NewReader(c), t}
}

const goodToken = "t+sbx_1"

// forwardedHead is what a platform sends of a request without a body.
func forwardedHead(method, scheme, host, port, path string, more ...string) string {
	return method + " /hook" + path + " HTTP/1.1\r\nHost: egress.test\r\nvercel-forwarded-scheme: " + scheme + "\r\nvercel-forwarded-host: " + host +
		"\r\nvercel-forwarded-port: " + port + "\r\nvercel-forwarded-path: " + path + "\r\n" + strings.Join(append(more, "", ""), "\r\n")
}

func token(text string) string { return "vercel-sandbox-oidc-token: " + text }

// answer reads one response with its body.
func (c *testClient) answer(method string) (*http.Response, string) {
	c.t.Helper()
	r, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return r, string(body)
}

// shown writes what of a request the upstream got.
func shown(w http.ResponseWriter, r *http.Request) {
	var fields []string
	for name, values := range r.Header {
		fields = append(fields, name+"="+strings.Join(values, ","))
	}
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s host=%s tls=%v %s body=%s", r.Method, r.RequestURI, r.Host, r.TLS != nil, strings.Join(fields, " "), body)
}

// TestForwardedRequests has requests of several sandboxes come by one connection, in clear and for https.
func TestForwardedRequests(t *testing.T) {
	w := newForwardedWorld(t)
	secure, plain := w.pki.secureOrigin(t, false, shown, nil), webOrigin(t, shown)
	c := w.dialForwarded(t)
	for _, row := range []struct {
		says, request, sandbox string
		has, lacks             string
	}{
		{"https", forwardedHead("GET", "https", "allowed.test", secure.port, "/public/a?q=1", token(goodToken), "X-Own: 1"), "vercel-sbx_1", "GET /public/a?q=1 host=allowed.test:" + secure.port + " tls=true", "Vercel"},
		{"http", forwardedHead("GET", "http", "allowed.test", plain.port, "/public/a", token(goodToken), "X-Own: 1"), "vercel-sbx_1", "X-Own=1", "Vercel"},
		{"another sandbox", forwardedHead("GET", "https", "opaque.test", secure.port, "/", token("u+x")), "one", "GET / host=opaque.test", "Vercel"},
		{"a body", forwardedHead("POST", "https", "allowed.test", secure.port, "/public/b", token(goodToken), "Content-Length: 4") + "abcd", "vercel-sbx_1", "body=abcd", "Vercel"},
		{"a body in chunks", forwardedHead("POST", "http", "allowed.test", plain.port, "/public/b", token("t+sbx_2"), "Transfer-Encoding: chunked") + "4\r\nabcd\r\n0\r\n\r\n", "vercel-sbx_2", "body=abcd", "Vercel"},
		{"a credential", forwardedHead("GET", "https", "other.test", secure.port, "/", token(goodToken), "X-Key: mine"), "vercel-sbx_1", "X-Key=****", realKey},
		{"fields that another spelling hides", forwardedHead("GET", "http", "allowed.test", plain.port, "/public/c", token(goodToken), "VERCEL_SANDBOX_OIDC_TOKEN: x", "Vercel_Forwarded_Host: evil.test", "vercel-forwarded-for: 1.2.3.4"), "vercel-sbx_1", "GET /public/c", "ercel"},
		{"a proxy user of another sandbox", forwardedHead("GET", "http", "allowed.test", plain.port, "/public/c", token(goodToken), "Proxy-Authorization: Basic b25lOng="), "vercel-sbx_1", "GET /public/c", "Basic"},
	} {
		c.send(row.request)
		r, body := c.answer("GET")
		if r.StatusCode != 200 || !strings.Contains(body, row.has) || strings.Contains(body, row.lacks) {
			t.Errorf("%s: %d %s", row.says, r.StatusCode, body)
		}
		var decided record.Record
		for _, o := range w.records(t) {
			if o.Kind == record.KindRequest {
				decided = o
			}
		}
		if decided.Sandbox != row.sandbox || decided.Via != "forwarded" {
			t.Errorf("%s: recorded as %+v", row.says, decided)
		}
	}
	for _, row := range []struct{ says, request, sandbox, class string }{
		{"a path that no rule allows", forwardedHead("GET", "https", "allowed.test", secure.port, "/private", token(goodToken)), "vercel-sbx_1", "path-denied"},
		{"a method that no rule allows", forwardedHead("DELETE", "https", "allowed.test", secure.port, "/public/a", token(goodToken)), "vercel-sbx_1", "method-denied"},
		{"the path of forwardURL, which is not the request's", strings.Replace(forwardedHead("GET", "https", "allowed.test", secure.port, "/private", token(goodToken)), "/hook/private", "/public/a", 1), "vercel-sbx_1", "path-denied"},
		{"a host that the template denies", forwardedHead("GET", "https", "opaque.test", secure.port, "/", token(goodToken)), "vercel-sbx_1", "rule-deny"},
		{"a host that nobody allows", forwardedHead("GET", "https", "unknown.test", secure.port, "/", token(goodToken)), "vercel-sbx_1", "default-deny"},
		{"a private address", forwardedHead("GET", "http", "10.0.0.1", "80", "/", token(goodToken)), "vercel-sbx_1", "address-denied"},
		{"the metadata service", forwardedHead("GET", "http", "169.254.169.254", "80", "/latest/meta-data/", token(goodToken)), "vercel-sbx_1", "address-denied"},
		{"loopback in IPv6", forwardedHead("GET", "http", "[::1]", "80", "/", token(goodToken)), "vercel-sbx_1", "address-denied"},
		{"a method that echoes", forwardedHead("TRACE", "http", "opaque.test", "80", "/", token("u+x")), "one", "method-denied"},
	} {
		mark := len(w.records(t))
		r, body := w.dialForwarded(t).send(row.request).answer("GET")
		var problem struct{ Class string }
		if err := json.Unmarshal([]byte(body), &problem); r.StatusCode != 403 || err != nil || problem.Class != row.class {
			t.Errorf("%s: %d %s", row.says, r.StatusCode, body)
		}
		for _, o := range w.records(t)[mark:] {
			if o.Kind == record.KindClose { // of an allowed request before
				continue
			}
			if o.Sandbox != row.sandbox || o.Decision != nil && o.Decision.Class != row.class {
				t.Errorf("%s: recorded as %+v", row.says, o)
			}
		}
	}
	w.mentionsNot(t, goodToken, "u+x")
}

// mentionsNot fails if a record holds one of the texts.
func (w *forwardedWorld) mentionsNot(t *testing.T, texts ...string) {
	t.Helper()
	all, err := json.Marshal(w.records(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if strings.Contains(string(all), text) {
			t.Errorf("the log holds %q", text)
		}
	}
}

// TestForwardedRequestsWithoutGoodTokens has nothing of them reach the upstream, and names no sandbox.
func TestForwardedRequestsWithoutGoodTokens(t *testing.T) {
	w := newForwardedWorld(t)
	seen := newWitness(t, "")
	good := forwardedHead("GET", "http", "allowed.test", seen.port, "/public/a")
	with := func(fields ...string) string {
		return strings.TrimSuffix(good, "\r\n") + strings.Join(append(fields, "", ""), "\r\n")
	}
	for _, row := range []struct {
		says, request string
		reason        string
	}{
		{"no token", good, "the request has no token of the platform"},
		{"an empty one", with("vercel-sandbox-oidc-token:"), "the request has no token of the platform"},
		{"a bad one", with(token("bad")), "the token is bad"},
		{"a token in another field", with("Authorization: Bearer " + goodToken), "the request has no token of the platform"},
		{"a token in a field with underscores", with("vercel_sandbox_oidc_token: " + goodToken), "the request has no token of the platform"},
		{"a proxy user in its place", with("Proxy-Authorization: Basic b25lOng="), "the request has no token of the platform"},
		{"another team's", with(token("v+sbx_1")), "no sandbox has this audience with these claims and this address, or its id is none"},
		{"no id", with(token("t+")), "or its id is none"},
		{"an id that leads out of the template", with(token("t+../one")), "or its id is none"},
		{"an id with a dot", with(token("t+a.b")), "or its id is none"},
		{"an id that is too long", with(token("t+" + strings.Repeat("a", 41))), "or its id is none"},
		{"fields that name a sandbox", with(token("bad"), "x-sandbox-id: sbx_1", "sandbox_id: sbx_1"), "the token is bad"},
	} {
		mark := len(w.records(t))
		r, body := w.dialForwarded(t).send(row.request).answer("GET")
		var problem struct{ Class, Reason, Message, Method string }
		err := json.Unmarshal([]byte(body), &problem)
		if err != nil || r.StatusCode != 403 || problem.Class != "unknown-sandbox" || problem.Method != "GET" || !strings.Contains(problem.Reason, row.reason) || !strings.Contains(problem.Message, "egressd why ") {
			t.Errorf("%s: %d %s", row.says, r.StatusCode, body)
		}
		if r.Header.Get("Proxy-Authenticate") != "" {
			t.Errorf("%s: asks for %q", row.says, r.Header.Get("Proxy-Authenticate"))
		}
		all := w.records(t)[mark:]
		if len(all) != 1 || all[0].Sandbox != "" || all[0].Via != "forwarded" || all[0].Decision == nil || all[0].Decision.Class != "unknown-sandbox" {
			t.Errorf("%s: recorded as %+v", row.says, all)
		}
		time.Sleep(110 * time.Millisecond) // ten a second have records of their own
	}
	if got := seen.got(); got != "" {
		t.Errorf("the upstream got %q", got)
	}
	w.mentionsNot(t, goodToken, "bad\r", "b25lOng")
}

// TestForwardedRequestsThatAreMalformed are refused before their token is looked at.
func TestForwardedRequestsThatAreMalformed(t *testing.T) {
	w := newForwardedWorld(t)
	seen := newWitness(t, "")
	good := forwardedHead("GET", "http", "allowed.test", seen.port, "/public/a", token(goodToken))
	change := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in %q", old, good)
		}
		return strings.Replace(good, old, new, 1)
	}
	host := func(text string) string { return change("host: allowed.test", "host: "+text) }
	port := func(text string) string { return change("port: "+seen.port, "port: "+text) }
	path := func(text string) string { return change("path: /public/a", "path: "+text) }
	scheme := func(text string) string { return change("scheme: http", "scheme: "+text) }
	for _, row := range []struct {
		says, request string
		status        int
	}{
		{"two tokens", change(token(goodToken), token(goodToken)+"\r\n"+token(goodToken)), 400},
		{"two tokens in two cases", change(token(goodToken), token(goodToken)+"\r\nVERCEL-SANDBOX-OIDC-TOKEN: "+goodToken), 400},
		{"two hosts", host("allowed.test\r\nvercel-forwarded-host: evil.test"), 400},
		{"two hosts of one kind", host("allowed.test\r\nVercel-Forwarded-Host: allowed.test"), 400},
		{"a list of hosts", host("allowed.test, evil.test"), 400},
		{"two ports", port("80\r\nvercel-forwarded-port: 443"), 400},
		{"two schemes", scheme("http\r\nvercel-forwarded-scheme: https"), 400},
		{"two paths", path("/public/a\r\nvercel-forwarded-path: /private"), 400},
		{"no host", change("vercel-forwarded-host: allowed.test\r\n", ""), 400},
		{"no port", change("vercel-forwarded-port: "+seen.port+"\r\n", ""), 400},
		{"no scheme", change("vercel-forwarded-scheme: http\r\n", ""), 400},
		{"no path", change("vercel-forwarded-path: /public/a\r\n", ""), 400},

		{"an empty host", host(""), 400},
		{"a host with a port", host("allowed.test:80"), 400},
		{"a host with userinfo", host("user@allowed.test"), 400},
		{"a host with userinfo and a password", host("allowed.test:x@evil.test"), 400},
		{"a host with a path", host("allowed.test/public"), 400},
		{"a host with a fragment", host("evil.test#allowed.test"), 400},
		{"a host with a query", host("evil.test?allowed.test"), 400},
		{"a host with a backslash", host(`evil.test\allowed.test`), 400},
		{"a host with a space", host("allowed.test evil.test"), 400},
		{"a host with a percent sign", host("allowed%2etest"), 400},
		{"a host with a zone", host("[fe80::1%25eth0]"), 400},
		{"a URL for a host", host("http://allowed.test"), 400},
		{"a wildcard", host("*.allowed.test"), 400},
		{"an address in octal", host("0177.0.0.1"), 400},
		{"an address as one number", host("2130706433"), 400},
		{"IPv6 without brackets", host("::1"), 400},
		{"letters that are not ASCII", host("allowed.t\xc3\xa9st"), 400},
		{"two dots", host("allowed..test"), 400},

		{"an empty port", port(""), 400},
		{"port 0", port("0"), 400},
		{"a port that is too large", port("65536"), 400},
		{"a port with a sign", port("+80"), 400},
		{"a port with a zero in front", port("080"), 400},
		{"a port in hexadecimal", port("0x50"), 400},
		{"a service for a port", port("http"), 400},
		{"a port and a path", port("80/x"), 400},

		{"a scheme in capitals", scheme("HTTP"), 400},
		{"another scheme", scheme("ftp"), 400},
		{"a scheme with a colon", scheme("http:"), 400},
		{"an empty scheme", scheme(""), 400},

		{"an empty path", path(""), 400},
		{"a path without a slash", path("public/a"), 400},
		{"a URL for a path", path("http://evil.test/public/a"), 400},
		{"a host for a path", path("//evil.test/public/a"), 400},
		{"a path with a fragment", path("/public/a#b"), 400},
		{"a path with a space", path("/public/a HTTP/1.1"), 400},
		{"a path with a bad escape", path("/public/%zz"), 400},
		{"a path with a tab", path("/public/a\tb"), 400},
		{"an asterisk", path("*"), 400},
		{"a path that is not ASCII", path("/public/\xff"), 400},

		{"a bare LF in a field", path("/public/a\nX-Evil: 1"), 400},
		{"a bare CR in a field", path("/public/a\rX-Evil: 1"), 400},
		{"a zero byte in a field", path("/public/a\x00"), 400},
		{"a folded field", path("/public/a\r\n /b"), 400},
		{"a space before the colon", change("vercel-forwarded-path:", "vercel-forwarded-path :"), 400},

		{"a whole URL as the target", change("GET /hook/public/a", "GET http://allowed.test/public/a"), 400},
		{"an asterisk as the target", change("GET /hook/public/a", "OPTIONS *"), 400},
		{"a target with a fragment", change("GET /hook/public/a", "GET /hook#a"), 400},
		{"CONNECT", change("GET /hook/public/a", "CONNECT allowed.test:443"), 400},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
		{"no Host", change("Host: egress.test\r\n", ""), 400},
		{"two Hosts", change("Host: egress.test", "Host: egress.test\r\nHost: evil.test"), 400},

		{"a length and chunks", change(token(goodToken), token(goodToken)+"\r\nContent-Length: 4\r\nTransfer-Encoding: chunked") + "0\r\n\r\nGET /hook", 400},
		{"two lengths", change(token(goodToken), token(goodToken)+"\r\nContent-Length: 4\r\nContent-Length: 5") + "abcde", 400},
		{"a list of lengths", change(token(goodToken), token(goodToken)+"\r\nContent-Length: 4, 4") + "abcd", 400},
		{"a length with a sign", change(token(goodToken), token(goodToken)+"\r\nContent-Length: +4") + "abcd", 400},
		{"chunks that are hidden", change(token(goodToken), token(goodToken)+"\r\nTransfer-Encoding: xchunked") + "0\r\n\r\n", 400},
		{"chunks twice", change(token(goodToken), token(goodToken)+"\r\nTransfer-Encoding: chunked, chunked") + "0\r\n\r\n", 400},
		{"a field of framing that Connection takes away", change(token(goodToken), token(goodToken)+"\r\nConnection: content-length\r\nContent-Length: 4") + "abcd", 400},
		{"a token that is longer than a head may be", change(goodToken, strings.Repeat("a", 70<<10)), 431},
	} {
		mark := len(w.records(t))
		r, body := w.dialForwarded(t).send(row.request).answer("GET")
		if r.StatusCode != row.status {
			t.Errorf("%s: %d %s", row.says, r.StatusCode, body)
		}
		if hinted := strings.HasPrefix(row.says, "no ") && row.says != "no Host" || row.says == "CONNECT"; hinted && !strings.Contains(body, "Programs use a listener of listen.proxy") {
			t.Errorf("%s: the answer is %s", row.says, body)
		}
		for _, o := range w.records(t)[mark:] {
			if o.Kind != record.KindRefused || o.Via != "forwarded" || o.Sandbox != "" {
				t.Errorf("%s: recorded as %+v", row.says, o)
			}
		}
	}
	for _, first := range []string{"\x05\x01\x00", "\x04\x01\x00\x50\x7f\x00\x00\x01\x00"} {
		if r, body := w.dialForwarded(t).send(first).answer("GET"); r.StatusCode != 400 || !strings.Contains(body, "listen.proxy") {
			t.Errorf("SOCKS: %d %s", r.StatusCode, body)
		}
	}
	if got := seen.got(); got != "" {
		t.Errorf("the upstream got %q", got)
	}
	if seen := w.seen(); len(seen) != 0 {
		t.Errorf("tokens of malformed requests were verified: %q", seen)
	}
	w.mentionsNot(t, goodToken)
}

// TestASecondForwardedRequestIsJudgedAlone hides a request in the body of another one, and takes the place of
// another sandbox behind it.
func TestASecondForwardedRequestIsJudgedAlone(t *testing.T) {
	w := newForwardedWorld(t)
	plain := webOrigin(t, shown)
	hidden := forwardedHead("GET", "http", "opaque.test", plain.port, "/", token("u+x"))
	c := w.dialForwarded(t)
	c.send(forwardedHead("POST", "http", "allowed.test", plain.port, "/public/a", token(goodToken), fmt.Sprintf("Content-Length: %d", len(hidden))) + hidden)
	if r, body := c.answer("POST"); r.StatusCode != 200 || !strings.Contains(body, "body=GET /hook/") {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	if n := len(w.seen()); n != 1 {
		t.Errorf("%d requests were seen", n)
	}
	for says, request := range map[string]string{
		"no head":   "GET /hook HTTP/1.1\r\nHost egress.test\r\n\r\n",
		"a CONNECT": "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
		"no path":   strings.Replace(forwardedHead("GET", "http", "allowed.test", plain.port, "/", token(goodToken)), "path: /", "path: *", 1),
	} {
		other := w.dialForwarded(t).send(forwardedHead("GET", "http", "allowed.test", plain.port, "/public/a", token(goodToken)))
		if r, body := other.answer("GET"); r.StatusCode != 200 {
			t.Errorf("%s: before it, %d %s", says, r.StatusCode, body)
		}
		mark := len(w.records(t))
		if r, body := other.send(request).answer("GET"); r.StatusCode != 400 {
			t.Errorf("%s: %d %s", says, r.StatusCode, body)
		}
		for _, o := range w.records(t)[mark:] {
			if o.Kind == record.KindRefused && o.Sandbox != "" {
				t.Errorf("%s is recorded of the sandbox of the request before: %+v", says, o)
			}
		}
	}
	c.send(forwardedHead("GET", "http", "allowed.test", plain.port, "/public/a")) // without a token, on a connection that had one
	if r, body := c.answer("GET"); r.StatusCode != 403 || !strings.Contains(body, "unknown-sandbox") {
		t.Errorf("without a token: %d %s", r.StatusCode, body)
	}
}
