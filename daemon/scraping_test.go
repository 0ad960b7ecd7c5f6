package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/testpki"
)

// freePort returns an address of loopback that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// scrape asks for a path with a token and a client certificate, which may be missing. It returns 0 if TLS fails.
func scrape(t *testing.T, roots *x509.CertPool, with *tls.Certificate, url, token string) (status int, text string) {
	t.Helper()
	c := &tls.Config{RootCAs: roots, ServerName: "metrics.test"}
	if with != nil {
		c.Certificates = []tls.Certificate{*with}
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	reply, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(body)
}

func pemOf(t *testing.T, c tls.Certificate) (cert, key string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// TestMetricsForOthers has a listener with TLS that asks for a token and a certificate. Whoever lacks one gets nothing, nobody gets
// more than metrics, and no sandbox gets there through egressd.
func TestMetricsForOthers(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	authority, other := testpki.New(t), testpki.New(t)
	cert, key := pemOf(t, authority.Server(t, nil, "metrics.test"))
	scraper, stranger := authority.Client(t, nil, "prometheus"), other.Client(t, nil, "prometheus")
	at := freePort(t)
	const token, next = "scrape-0123456789", "scrape-9876543210"
	w := serveRego(t, fmt.Sprintf("allow: [\"one.test:*\"]\nmetrics: {listen: %q, cert_file: m.pem, key_file: m.key, token_file: m.token, client_ca: ca.pem}\n", at), map[string]string{
		"m.pem": cert, "m.key": key, "m.token": token + "\n",
		"ca.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate.Raw})),
	})
	for _, row := range []struct {
		says   string
		with   *tls.Certificate
		path   string
		token  string
		status int
	}{
		{"whoever may", &scraper, "/metrics", token, 200},
		{"no token", &scraper, "/metrics", "", 401},
		{"another token", &scraper, "/metrics", next, 401},
		{"no certificate", nil, "/metrics", token, 0},
		{"a certificate of another authority", &stranger, "/metrics", token, 0},
		{"what operators ask", &scraper, "/v1/policy", token, 404},
		{"readiness", &scraper, "/readyz", token, 404},
		{"flows", &scraper, "/v1/flows", token, 404},
	} {
		status, text := scrape(t, authority.Pool, row.with, "https://"+at+row.path, row.token)
		if status != row.status || strings.Contains(text, "egressd_ready 1\n") != (status == 200) {
			t.Errorf("%s: %d %.300s", row.says, status, text)
		}
	}
	if status, text := w.connect(t, "one.test:"+upstream(t)); status != 200 {
		t.Errorf("a sandbox does not get to another port of loopback: %d %s", status, text)
	}
	if status, text := w.connect(t, strings.Replace(at, "127.0.0.1", "one.test", 1)); status != 403 {
		t.Errorf("a sandbox gets there: %d %s", status, text)
	}
	w.write(t, "m.token", next+"\n")
	if err := w.reload(t); err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]int{token: 401, next: 200} {
		if status, _ := scrape(t, authority.Pool, &scraper, "https://"+at+"/metrics", token); status != want {
			t.Errorf("after a reload, %s: %d", token, status)
		}
	}
	w.write(t, "m.token", "short\n")
	if err := w.reload(t); err == nil {
		t.Error("a short token is taken")
	}
	if status, _ := scrape(t, authority.Pool, &scraper, "https://"+at+"/metrics", next); status != 200 {
		t.Errorf("what a file that is refused says counts: %d", status)
	}
}

// TestMetricsOnLoopbackNeedATokenAlone speaks plain HTTP, without the operator's listener.
func TestMetricsOnLoopbackNeedATokenAlone(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	at := freePort(t)
	w := serveRego(t, fmt.Sprintf("allow: [\"one.test:*\"]\nmetrics: {listen: %q, token_file: m.token}\n", at), map[string]string{"m.token": "scrape-0123456789"})
	for token, want := range map[string]int{"": 401, "scrape-0123456789": 200} {
		if status, text := scrape(t, nil, nil, "http://"+at+"/metrics", token); status != want {
			t.Errorf("token %q: %d %s", token, status, text)
		}
	}
	if status, text := w.connect(t, "one.test:"+upstream(t)); status != 200 {
		t.Errorf("a sandbox does not get to another port of loopback: %d %s", status, text)
	}
	if status, text := w.connect(t, strings.Replace(at, "127.0.0.1", "one.test", 1)); status != 403 {
		t.Errorf("a sandbox gets there: %d %s", status, text)
	}
}
