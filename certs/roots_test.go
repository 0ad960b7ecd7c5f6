package certs

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestSystemRootsIsTheFirstBundleThereIs(t *testing.T) {
	dir := t.TempDir()
	none, first, second := filepath.Join(dir, "none.pem"), filepath.Join(dir, "first.pem"), filepath.Join(dir, "second.pem")
	put(t, dir, "first.pem", create(t, t.TempDir()).PEM())
	put(t, dir, "second.pem", create(t, t.TempDir()).PEM())
	path, text, err := firstBundle([]string{none, first, second})
	if path != first || err != nil || !bytes.Equal(text, read(t, first)) {
		t.Errorf("%s, %v", path, err)
	}
	if _, _, err := firstBundle([]string{none}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "install the package ca-certificates") {
		t.Errorf("without a bundle: %v", err)
	}
	put(t, dir, "first.pem", nil)
	if _, _, err := firstBundle([]string{first, second}); err == nil || !strings.Contains(err.Error(), first) {
		t.Errorf("an empty bundle was passed over: %v", err)
	}
	if _, _, err := firstBundle([]string{dir, second}); err == nil {
		t.Error("a bundle that cannot be read was passed over")
	}
}

// TestEnvironmentHasNoSay is about SSL_CERT_FILE, which crypto/x509 obeys.
func TestEnvironmentHasNoSay(t *testing.T) {
	dir := t.TempDir()
	create(t, dir)
	t.Setenv("SSL_CERT_FILE", filepath.Join(dir, CertificateFile))
	path, text, err := SystemRoots()
	if err != nil || !slices.Contains(bundles(), path) || bytes.Contains(text, read(t, dir, CertificateFile)) {
		t.Errorf("%s, %v", path, err)
	}
}

func TestPool(t *testing.T) {
	system, corp, stranger := create(t, t.TempDir()), create(t, t.TempDir()), create(t, t.TempDir())
	dir := t.TempDir()
	bundle := filepath.Join(dir, "bundle.pem")
	put(t, dir, "bundle.pem", system.PEM())
	pool, err := poolFrom([]string{bundle}, [][]byte{append([]byte("# our own\n"), corp.PEM()...)})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		what string
		a    *Authority
		ok   bool
	}{{"the system's", system, true}, {"an extra one", corp, true}, {"a stranger's", stranger, false}} {
		options := options("api.example")
		options.Roots = pool
		if _, err := leafOf(t, row.a, "api.example").Leaf.Verify(options); (err == nil) != row.ok {
			t.Errorf("%s: %v", row.what, err)
		}
	}
	for what, text := range map[string]string{
		"nothing": "", "text": "hello", "a key": string(read(t, keyOf(t))),
		"a certificate and a broken one": string(corp.PEM()) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
	} {
		if _, err := poolFrom([]string{bundle}, [][]byte{corp.PEM(), []byte(text)}); err == nil || !strings.HasPrefix(err.Error(), "extra roots 1: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	put(t, dir, "bundle.pem", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	if _, err := poolFrom([]string{bundle}, nil); err == nil {
		t.Error("a bundle without a certificate that can be read makes a pool")
	}
}

func keyOf(t *testing.T) string {
	dir := t.TempDir()
	create(t, dir)
	return filepath.Join(dir, keyFile)
}

func TestPoolOfThisSystem(t *testing.T) {
	if _, err := Pool(create(t, t.TempDir()).PEM()); err != nil {
		t.Error(err)
	}
}
