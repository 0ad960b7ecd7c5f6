package tokens

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestATokenOfARegistry asks a token service that answers as those of Docker Hub, GitLab and quay.io do, and in ways that are refused.
func TestATokenOfARegistry(t *testing.T) {
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect is followed") }))
	defer elsewhere.Close()
	answer, status := "", http.StatusOK
	var got *http.Request
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		if status == http.StatusFound {
			w.Header().Set("Location", elsewhere.URL)
		}
		w.WriteHeader(status)
		io.WriteString(w, answer)
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	roots.AddCert(elsewhere.Certificate())
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	here := func(_ context.Context, host string, to uint16) ([]netip.Addr, error) {
		if host != "example.com" || strconv.Itoa(int(to)) != port {
			t.Errorf("looked up %s for port %d", host, to)
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	q := Pull{Realm: "https://example.com:" + port + "/token?account=x", Service: "registry.test", Scope: "repository:acme/app:pull", User: "acme", Secret: "REALpassword"}
	for _, row := range []struct {
		answer string
		status int
		want   string
		lasts  time.Duration
	}{
		{`{"token": "one", "access_token": "one", "expires_in": 300, "issued_at": "2026-11-29T00:00:00Z"}`, 200, "one", 300 * time.Second},
		{`{"token": "two"}`, 200, "two", time.Minute},
		{`{"access_token": "three", "expires_in": 9999999}`, 200, "three", time.Hour},
		{`{"token": ""}`, 200, "", 0},
		{`{"token": "a\r\nb"}`, 200, "", 0},
		{`token`, 200, "", 0},
		{`{"token": "one"}`, 302, "", 0},
		{`{"errors": [{"message": "REALpassword"}]}`, 401, "", 0},
		{strings.Repeat(" ", answerMost+1), 200, "", 0},
	} {
		answer, status = row.answer, row.status
		token, err := New(roots, here).ByRegistry(t.Context(), q)
		if token.Text != row.want || (err == nil) != (row.want != "") {
			t.Errorf("%.40s: %q %v", row.answer, token, err)
		}
		if left := time.Until(token.Until); err == nil && (left > row.lasts || left < row.lasts-10*time.Second) {
			t.Errorf("%.40s: it lasts %s", row.answer, left)
		}
		if err != nil && (strings.Contains(err.Error(), "REAL") || strings.Contains(err.Error(), "acme/app")) {
			t.Errorf("the error shows too much: %v", err)
		}
	}
	if user, password, _ := got.BasicAuth(); user != "acme" || password != "REALpassword" || got.URL.Query().Encode() != "account=x&scope=repository%3Aacme%2Fapp%3Apull&service=registry.test" {
		t.Errorf("asked %s", got.URL)
	}
	if _, err := New(x509.NewCertPool(), here).ByRegistry(t.Context(), q); err == nil {
		t.Error("a server that nobody vouches for is asked")
	}
	got = nil
	closed := func(context.Context, string, uint16) ([]netip.Addr, error) { return nil, errors.New("it is closed") }
	if _, err := New(roots, closed).ByRegistry(t.Context(), q); err == nil || !strings.Contains(err.Error(), "it is closed") || got != nil {
		t.Errorf("an address that is closed: %v", err)
	}
}

// TestSandboxesTakeTurnsAtATokenService: the question of another sandbox waits for one of a sandbox that asks for many tokens, and not
// for all.
func TestSandboxesTakeTurnsAtATokenService(t *testing.T) {
	scopes, answer := make(chan string), make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scopes <- r.URL.Query().Get("scope")
		<-answer
		io.WriteString(w, `{"token": "one"}`)
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	asker := New(roots, func(context.Context, string, uint16) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	})
	var asked sync.WaitGroup
	ask := func(sandbox string) {
		asked.Go(func() {
			asker.ByRegistry(t.Context(), Pull{Realm: "https://example.com:" + port + "/token", Service: "registry.test", Scope: sandbox, User: "u", Secret: "REALpassword", Holder: sandbox, Sandbox: sandbox})
		})
	}
	waiting := func(n int) {
		for asker.turns.Waiting() < n {
			runtime.Gosched()
		}
	}
	for range registriesMost {
		ask("greedy")
		<-scopes
	}
	for range 5 {
		ask("greedy")
	}
	waiting(5)
	ask("modest")
	waiting(6)
	var next []string // of which one may be greedy's
	for range 2 {
		answer <- struct{}{}
		next = append(next, <-scopes)
	}
	if !slices.Contains(next, "modest") {
		t.Errorf("%q are asked for first", next)
	}
	close(answer)
	go func() {
		for range scopes {
		}
	}()
	asked.Wait()
	server.Close()
	close(scopes)
}
