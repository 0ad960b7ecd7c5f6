package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// inspecting starts an origin and a goproxy that looks into tunnels to it, and
// returns the origin's port, the proxy's address and its authority.
func inspecting(t *testing.T, roots func(origin *x509.Certificate) []byte) (port string, proxy *url.URL, ca *x509.CertPool) {
	t.Helper()
	origin := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "page")
	}))
	t.Cleanup(origin.Close)
	_, port, _ = strings.Cut(origin.Listener.Addr().String(), ":")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "roots.pem"), roots(origin.Certificate()), 0o644); err != nil {
		t.Fatal(err)
	}
	handler := newProxy("example.com", nil) // a name of the origin's certificate
	if err := inspect(handler, port, filepath.Join(dir, "roots.pem"), filepath.Join(dir, "ca.pem")); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	text, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ca = x509.NewCertPool()
	if !ca.AppendCertsFromPEM(text) {
		t.Fatal("no certificate of the authority")
	}
	proxy, err = url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return port, proxy, ca
}

func pemOf(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

func through(proxy *url.URL, ca *x509.CertPool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:             http.ProxyURL(proxy),
		TLSClientConfig:   &tls.Config{RootCAs: ca},
		DisableKeepAlives: true,
	}}
}

func TestATunnelToThePortIsInspected(t *testing.T) {
	port, proxy, ca := inspecting(t, pemOf)
	var leaves []string
	for range 2 {
		answer, err := through(proxy, ca).Get("https://example.com:" + port)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || string(body) != "page" {
			t.Errorf("it answers %q, %v", body, err)
		}
		leaves = append(leaves, answer.TLS.PeerCertificates[0].SerialNumber.String())
	}
	if leaves[0] != leaves[1] {
		t.Error("a leaf was made twice")
	}
}

func TestTheFarSideIsVerified(t *testing.T) {
	stranger, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	port, proxy, ca := inspecting(t, func(*x509.Certificate) []byte { return pemOf(stranger.Leaf) })
	if answer, err := through(proxy, ca).Get("https://example.com:" + port); err == nil {
		t.Errorf("an origin that nobody vouches for answers with status %d", answer.StatusCode)
	}
}

func TestAnotherPortStaysATunnel(t *testing.T) {
	_, proxy, ca := inspecting(t, pemOf)
	origin := httptest.NewTLSServer(http.NotFoundHandler())
	defer origin.Close()
	_, port, _ := strings.Cut(origin.Listener.Addr().String(), ":")
	ca.AddCert(origin.Certificate())
	answer, err := through(proxy, ca).Get("https://example.com:" + port)
	if err != nil || !answer.TLS.PeerCertificates[0].Equal(origin.Certificate()) {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestRootsWithoutACertificateAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(file, []byte("nothing"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := inspect(newProxy("example.com", nil), "443", file, file+".ca"); err == nil {
		t.Error("they were taken")
	}
}
