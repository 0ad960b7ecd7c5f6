package registry

import (
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/credentials"
)

// TestToken asks a token service that answers as those of Docker Hub, GitLab and quay.io do, and in ways that are refused.
func TestToken(t *testing.T) {
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
	here := func(_ context.Context, host string) ([]netip.Addr, error) {
		if host != "example.com" {
			t.Errorf("looked up %s", host)
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	q := credentials.TokenQuery{TokenService: credentials.TokenService{Realm: "https://example.com:" + port + "/token?account=x", Service: "registry.test"}, Scope: "repository:acme/app:pull", User: "acme", Password: "REALpassword"}
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
		token, until, err := NewTokenClient(roots, here).Token(t.Context(), q)
		if string(token) != row.want || (err == nil) != (row.want != "") {
			t.Errorf("%.40s: %q %v", row.answer, token, err)
		}
		if left := time.Until(until); err == nil && (left > row.lasts || left < row.lasts-10*time.Second) {
			t.Errorf("%.40s: it lasts %s", row.answer, left)
		}
		if err != nil && (strings.Contains(err.Error(), "REAL") || strings.Contains(err.Error(), "acme/app")) {
			t.Errorf("the error shows too much: %v", err)
		}
	}
	if user, password, _ := got.BasicAuth(); user != "acme" || password != "REALpassword" || got.URL.Query().Encode() != "account=x&scope=repository%3Aacme%2Fapp%3Apull&service=registry.test" {
		t.Errorf("asked %s", got.URL)
	}
	if _, _, err := NewTokenClient(x509.NewCertPool(), here).Token(t.Context(), q); err == nil {
		t.Error("a server that nobody vouches for is asked")
	}
}
