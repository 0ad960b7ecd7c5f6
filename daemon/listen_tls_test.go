package daemon

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/internal/testpki"
)

func certificatePEM(t *testing.T, authority bool) string {
	t.Helper()
	c := testpki.SelfSigned(t, func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = authority, true })
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
}

func TestClientAuthorities(t *testing.T) {
	one, leaf := certificatePEM(t, true), certificatePEM(t, false)
	for _, good := range []string{one, one + certificatePEM(t, true), "\n" + one + "\n\n"} {
		if pool, err := clientAuthorities([]byte(good)); pool == nil || err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for says, bad := range map[string]string{
		"nothing": "", "not PEM": "ca", "cut short": one[:len(one)/2], "one and a half": one + one[:len(one)/2], "a leaf": leaf,
		"text behind": one + "# comment", "a key": strings.ReplaceAll(one, "CERTIFICATE", "PRIVATE KEY"), "rubbish in it": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
	} {
		if pool, err := clientAuthorities([]byte(bad)); pool != nil || err == nil {
			t.Errorf("%s: taken", says)
		}
	}
}

// TestSocketsAreOpenToUsersWhereUsersCount follows the mode of a shared socket
// and of one sandbox's own, at the start and over reloads.
func TestSocketsAreOpenToUsersWhereUsersCount(t *testing.T) {
	dir := t.TempDir()
	path, shared, theirs := filepath.Join(dir, "egressd.yaml"), filepath.Join(dir, "shared"), filepath.Join(dir, "own")
	write := func(own, others string) {
		text := fmt.Sprintf("version: 1\nlisten: {proxy: [\"unix:%s\"]}\naudit: {dir: %q}\nupstream: {dns: [\"127.0.0.1:9\"]}\nallow: [a.example]\nsandboxes:\n- {name: own, listen: \"unix:%s\"%s}\n%s",
			shared, filepath.Join(dir, "audit"), theirs, own, others)
		writeFile(t, path, text)
	}
	expect := func(says string, ofShared, ofTheirs fs.FileMode) {
		t.Helper()
		for socket, want := range map[string]fs.FileMode{shared: ofShared, theirs: ofTheirs} {
			if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %s has mode %v, %v; want %v", says, filepath.Base(socket), info.Mode().Perm(), err, want)
			}
		}
	}
	write("", "- {name: u, uid: [7]}\n")
	d := started(t, io.Discard, path)
	defer d.stop(0)
	expect("a user of the shared socket", 0o666, 0o660)
	for _, step := range []struct {
		says, own, others string
		shared, theirs    fs.FileMode
	}{
		{"a user of its own socket", ", uid: [7]", "", 0o660, 0o666},
		{"users of both", ", uid: [7]", "- {name: u, uid: [8]}\n", 0o666, 0o666},
		{"no users", "", "", 0o660, 0o660},
	} {
		write(step.own, step.others)
		if err := d.reloads.apply(context.Background(), "test"); err != nil {
			t.Fatalf("%s: %v", step.says, err)
		}
		expect(step.says, step.shared, step.theirs)
	}
}

// TestClientAuthoritiesAreReadAgain refuses a reload whose authorities cannot
// be read, and takes one with others.
func TestClientAuthoritiesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("clients.pem", certificatePEM(t, true))
	write("egressd.yaml", "version: 1\nlisten: {proxy: [\"tls:127.0.0.1:0\"], client_ca: clients.pem, server_names: [egressd.internal]}\naudit: {dir: audit}\ntls: {ca_dir: ca}\nupstream: {dns: [\"127.0.0.1:9\"]}\nallow: [a.example]\n")
	d, err := New(io.Discard, filepath.Join(dir, "egressd.yaml"), Tailoring{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.start(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer d.stop(0)
	before := d.listeners.overTLS.Load()
	if before == nil || before.Clients == nil || before.Names[len(before.Names)-1] != "egressd.internal" || len(*d.listeners.own.Load()) != 1 {
		t.Fatalf("listening with %+v", before)
	}
	for _, bad := range []string{"", "rubbish", certificatePEM(t, false)} {
		write("clients.pem", bad)
		if err := d.reloads.apply(context.Background(), "test"); err == nil || !strings.Contains(err.Error(), "listen.client_ca") || d.listeners.overTLS.Load() != before {
			t.Errorf("%q: %v", bad, err)
		}
	}
	write("clients.pem", certificatePEM(t, true))
	if err := d.reloads.apply(context.Background(), "test"); err != nil || d.listeners.overTLS.Load().Clients.Equal(before.Clients) {
		t.Errorf("other authorities: %v", err)
	}
}

// TestAModeIsForTheSocketThatWasOpened has somebody who can write in a socket's
// folder put a link in its place: what the link leads to keeps its mode.
func TestAModeIsForTheSocketThatWasOpened(t *testing.T) {
	dir := t.TempDir()
	path, socket, secret := filepath.Join(dir, "egressd.yaml"), filepath.Join(dir, "s"), filepath.Join(dir, "secret")
	policy := fmt.Sprintf("version: 1\nlisten: {proxy: [\"unix:%s\"]}\naudit: {dir: audit}\nupstream: {dns: [\"127.0.0.1:9\"]}\nallow: [a.example]\n", socket)
	writeFile(t, secret, "x")
	writeFile(t, path, policy)
	d := started(t, io.Discard, path)
	defer d.stop(0)
	moved := filepath.Join(dir, "moved")
	if err := os.Rename(socket, moved); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, socket); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, policy+"sandboxes: [{name: u, uid: [7]}]\n")
	if err := d.reloads.apply(context.Background(), "test"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{secret: 0o600, moved: 0o666} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v, %v; want %v", filepath.Base(name), info.Mode().Perm(), err, want)
		}
	}
}
