package bundle

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"github.com/egressd/egressd/rego"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/bundle"
)

var signingTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var bundled = []rego.Source{
	{Name: "egress.rego", Text: []byte("package egress\n\nallow contains {\"rule\": \"listed\"} if host.any(input.destination.host, data.hosts.good)\n")},
	{Name: "egress_test.rego", Text: []byte("package egress_test\n\nimport data.egress\n\ntest_none if count(egress.allow) == 0 with input as {\"destination\": {\"host\": \"x.test\"}}\n")},
	{Name: "hosts.yaml", Text: []byte("hosts:\n  good: [a.example, b.example]\n  weight: 12345678901234567890\n")},
}

func mustBuild(t testing.TB, o BuildOptions) []byte {
	t.Helper()
	tarball, err := Build(bundled, o)
	if err != nil {
		t.Fatal(err)
	}
	return tarball
}

// testKey makes a pair of keys.
func testKey(t testing.TB, kind string) (private []byte, public []byte) {
	t.Helper()
	var key crypto.Signer
	var err error
	switch kind {
	case "Ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case "P-256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "P-384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "P-521":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "RSA":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return keyPEM(t, key), mustPublicPEM(t, key)
}

func keyPEM(t testing.TB, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func mustPublicPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	text, err := publicPEM(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestBundleSignedByEveryAlgorithm signs with every algorithm, and has the bundle read by
// egressd and by OPA.
func TestBundleSignedByEveryAlgorithm(t *testing.T) {
	for _, c := range []struct {
		key        string
		algorithms []string
	}{
		{"Ed25519", []string{"EdDSA"}},
		{"P-256", []string{"ES256"}},
		{"P-384", []string{"ES384"}},
		{"P-521", []string{"ES512"}},
		{"RSA", []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}},
	} {
		private, public := testKey(t, c.key)
		for _, algorithm := range c.algorithms {
			signed, err := Sign(mustBuild(t, BuildOptions{Revision: "r7"}), SignOptions{KeyPEM: private, Algorithm: algorithm, KeyID: "team", Scope: "prod", Now: signingTime, Valid: time.Hour})
			if err != nil {
				t.Fatalf("%s: %v", algorithm, err)
			}
			got, err := Read(signed, &Key{PEM: public, Algorithm: algorithm, Scope: "prod"}, signingTime.Add(time.Minute))
			if err != nil {
				t.Fatalf("%s: %v", algorithm, err)
			}
			want := &Bundle{
				Revision: "r7", Roots: []string{"egress", "egress_test", "hosts"},
				Issued: signingTime.Local(), Expires: signingTime.Add(time.Hour).Local(), KeyID: "team", Signed: true,
				Sources: []rego.Source{bundled[0], bundled[1], {Name: "data.json", Text: []byte(`{"hosts":{"good":["a.example","b.example"],"weight":12345678901234567890}}`)}},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", algorithm, diff)
			}
			readByOPA(t, signed, algorithm, public)
			if _, err := Read(signed, &Key{PEM: public, Algorithm: algorithm, Scope: "prod"}, signingTime.Add(time.Hour)); !errors.Is(err, ErrExpired) {
				t.Errorf("%s: after its time: %v", algorithm, err)
			}
		}
	}
}

// readByOPA reads a bundle as OPA does.
func readByOPA(t *testing.T, tarball []byte, algorithm string, public []byte) bundle.Bundle {
	t.Helper()
	b, err := bundle.NewCustomReader(bundle.NewTarballLoaderWithBaseURL(bytes.NewReader(tarball), "")).
		WithBundleVerificationConfig(bundle.NewVerificationConfig(map[string]*bundle.KeyConfig{"team": {Key: string(public), Algorithm: algorithm}}, "", "prod", nil)).
		Read()
	if err != nil {
		t.Fatalf("%s: OPA: %v", algorithm, err)
	}
	return b
}
