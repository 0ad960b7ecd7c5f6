package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

// names resolves every name to loopback, where the test's servers are.
type names struct{}

func (names) Cached(string) ([]netip.Addr, []string, bool) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, true
}

func (names) Lookup(context.Context, string) ([]netip.Addr, []string, error) {
	return nil, nil, errors.New("every name is cached")
}

func TestEveryRequestGoesThroughTheGate(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	clear, secret := httptest.NewServer(hello), httptest.NewTLSServer(hello)
	defer clear.Close()
	defer secret.Close()
	text := "version: 1\nallow: [\"example.com:*\"]\nunsafe_allow: [\"127.0.0.1:" + portOf(t, clear.URL) + "\", \"127.0.0.1:" + portOf(t, secret.URL) + "\"]\n"
	dir := filepath.Join(t.TempDir(), "audit")
	gate, stop, err := newGate([]byte(text), dir, names{})
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(newProxy(gate))
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	through := secret.Client().Transport.(*http.Transport).Clone()
	through.Proxy = http.ProxyURL(at)
	client := &http.Client{Transport: through}
	for _, row := range []struct{ url, want string }{
		{"http://example.com:" + portOf(t, clear.URL) + "/", "hello"},
		{"https://example.com:" + portOf(t, secret.URL) + "/", "hello"},
		{"http://evil.test:" + portOf(t, clear.URL) + "/", string(policy.DefaultDeny)},
		{"https://evil.test:" + portOf(t, secret.URL) + "/", "Forbidden"},
		{"http://127.0.0.2:" + portOf(t, clear.URL) + "/", string(policy.AddressDenied)},
	} {
		got := ""
		if answer, err := client.Get(row.url); err != nil {
			got = err.Error()
		} else {
			body, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			got = string(body)
		}
		if !strings.Contains(got, row.want) {
			t.Errorf("%s: %q, want %q", row.url, got, row.want)
		}
	}
	through.CloseIdleConnections()
	proxy.Close()
	stop()
	log, err := os.ReadFile(filepath.Join(dir, "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	for want, n := range map[string]int{`"action":"allow"`: 2, `"action":"deny"`: 3} {
		if got := strings.Count(string(log), want); got < n {
			t.Errorf("%s is in %d records, want %d\n%s", want, got, n, log)
		}
	}
}

func portOf(t *testing.T, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}
