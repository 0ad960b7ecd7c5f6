package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func open(t testing.TB, dir string) *Authority {
	t.Helper()
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func same(a, b *Authority) bool { return a.Certificate().Equal(b.Certificate()) }

func names(t testing.TB, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func read(t testing.TB, elements ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func put(t testing.TB, dir, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// copyFile copies a file into another folder, under a name of its own there.
func copyFile(t testing.TB, from, name, to, as string) {
	t.Helper()
	put(t, to, as, read(t, from, name))
}

func TestCreateAndOpen(t *testing.T) {
	for _, mask := range []int{0, 0o077} {
		t.Run(fmt.Sprintf("umask %04o", mask), func(t *testing.T) {
			defer syscall.Umask(syscall.Umask(mask))
			createAndOpen(t, filepath.Join(t.TempDir(), "state", "ca"))
		})
	}
}

func createAndOpen(t *testing.T, dir string) {
	made := create(t, dir)
	for name, want := range map[string]fs.FileMode{".": 0o700 | fs.ModeDir, "ca.pem": 0o644, "ca-key.pem": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	if got := names(t, dir); !slices.Equal(got, []string{"ca-key.pem", "ca.pem"}) {
		t.Errorf("the folder holds %q", got)
	}
	if text := read(t, dir, "ca.pem"); !bytes.Equal(text, made.PEM()) || bytes.Contains(text, []byte("KEY")) {
		t.Errorf("ca.pem is not the certificate alone:\n%s", text)
	}
	opened := open(t, dir)
	if !same(made, opened) {
		t.Error("another certificate was opened than was made")
	}
	if err := verify(made, leafOf(t, opened, "api.example").Leaf, "api.example"); err != nil {
		t.Error("the opened key is not that of the certificate:", err)
	}
	if opened.leafKey.Equal(made.leafKey) || opened.leafKey.Equal(opened.key) {
		t.Error("the key of the leaves is not the process's own")
	}
}

func TestCreateLeavesWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	first := create(t, dir)
	if _, err := Create(dir); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("created over another: %v", err)
	}
	if !same(first, open(t, dir)) {
		t.Error("it was changed")
	}
	if err := os.Remove(filepath.Join(dir, keyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a certificate whose key is lost was replaced: %v", err)
	}
}

func TestThereIsNone(t *testing.T) {
	other, dir := t.TempDir(), t.TempDir()
	create(t, other)
	missing := filepath.Join(dir, "none")
	for _, path := range []string{missing, dir} {
		if _, err := Open(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open: %v", err)
		}
		if _, err := Rotate(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("rotate: %v", err)
		}
	}
	if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Error("looking for it made the folder")
	}
	if got := names(t, dir); len(got) > 0 {
		t.Errorf("looking for it left %q", got)
	}
}

// TestWhatACrashLeaves stops Create and Rotate between any two of their steps.
// What follows is the pair from before or the one after, never a mixture.
func TestWhatACrashLeaves(t *testing.T) {
	before, after := t.TempDir(), t.TempDir()
	old, fresh := create(t, before), create(t, after)
	type part struct{ dir, name, as string }
	for _, row := range []struct {
		what  string
		parts []part
		want  *Authority // nil: there is none, and one can be made
	}{
		{"create, with half of the certificate", []part{{after, keyFile, ".ca-next.pem.tmp"}}, nil},
		{"create, before the key", []part{{after, CertificateFile, nextFile}}, nil},
		{"create, with half of the key", []part{{after, CertificateFile, nextFile}, {before, keyFile, ".ca-key.pem.tmp"}}, nil},
		{"create, after the key", []part{{after, CertificateFile, nextFile}, {after, keyFile, keyFile}}, fresh},
		{"a key without its certificate", []part{{after, keyFile, keyFile}}, nil},
		{"rotate, before the key", []part{{before, keyFile, keyFile}, {before, CertificateFile, CertificateFile}, {after, CertificateFile, nextFile}}, old},
		{"rotate, after the key", []part{{after, keyFile, keyFile}, {before, CertificateFile, CertificateFile}, {after, CertificateFile, nextFile}}, fresh},
	} {
		t.Run(row.what, func(t *testing.T) {
			dir := t.TempDir()
			for _, p := range row.parts {
				copyFile(t, p.dir, p.name, dir, p.as)
			}
			got, err := Open(dir)
			if row.want != nil {
				if err != nil || !same(got, row.want) {
					t.Fatalf("opened %v, %v", got, err)
				}
				if _, err := Create(dir); !errors.Is(err, fs.ErrExist) {
					t.Errorf("created over it: %v", err)
				}
				return
			}
			if !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("opened: %v", err)
			}
			if made := create(t, dir); !same(made, open(t, dir)) {
				t.Error("what was created is not what is opened")
			}
		})
	}
}

// spoil is one way in which an authority is not usable.
type spoil struct {
	what         string
	do           func(t *testing.T, dir string)
	problem, fix string
	stays        bool // a rotation does not heal it
}

func chmod(name string, mode fs.FileMode) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func chown(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.Chown(filepath.Join(dir, name), 1, -1); err != nil {
			t.Fatal(err)
		}
	}
}

func holds(name, text string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { put(t, dir, name, []byte(text)) }
}

// signed has the folder hold the certificate that change makes of an ordinary
// one, with its key.
func signed(change func(*x509.Certificate)) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		cert, key, err := generate(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		change(cert)
		der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		putPair(t, dir, der, key)
	}
}

func putPair(t *testing.T, dir string, cert []byte, key any) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, CertificateFile, encodeCertificate(cert))
	put(t, dir, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func otherKey(curve elliptic.Curve) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		putPair(t, dir, open(t, dir).Certificate().Raw, key)
	}
}

// signedByAnother has the folder hold a pair whose certificate another key
// has signed.
func signedByAnother(t *testing.T, dir string) {
	a := open(t, dir)
	cert, key, err := generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.Certificate(), key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	putPair(t, dir, der, key)
}

func twoCertificates(t *testing.T, dir string) {
	text := read(t, dir, CertificateFile)
	put(t, dir, CertificateFile, append(text, text...))
}

var spoiled = []spoil{
	{"the key can be read by the group", chmod(keyFile, 0o640), "ca-key.pem can be read by others", "chmod 600 ", false},
	{"the key can be read by everybody", chmod(keyFile, 0o604), "ca-key.pem can be read by others", "chmod 600 ", false},
	{"the folder can be written by the group", chmod(".", 0o770), "can be written by others", "chmod go-w ", true},
	{"the folder can be written by everybody", chmod(".", 0o702), "can be written by others", "chmod go-w ", true},
	{"the key is missing", func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, keyFile)) }, "ca-key.pem is missing", "restore it", false},
	{"the key is of another certificate", otherKey(elliptic.P256()), "ca-key.pem is not the key of ", "restore the one", false},
	{"the key is of another kind", otherKey(elliptic.P384()), "not of the kind ECDSA P-256", "restore it", false},
	{"the key is empty", holds(keyFile, ""), "holds no key in PKCS #8", "restore it", false},
	{"the key is broken", holds(keyFile, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), "no key that can be read", "restore it", false},
	{"the key is of an older form", holds(keyFile, "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"), "holds no key in PKCS #8", "restore it", false},
	{"the certificate is empty", holds(CertificateFile, ""), "holds no certificate in PEM", "restore it", false},
	{"the certificate is broken", holds(CertificateFile, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "cannot be read", "restore it", false},
	{"the certificate is a key", holds(CertificateFile, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), `a "PRIVATE KEY" where`, "restore it", false},
	{"there are two certificates", twoCertificates, "holds 2 certificates", "restore it", false},
	{"the certificate has expired", signed(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "has expired on ", "egressd ca rotate", false},
	{"the certificate is of the future", signed(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }), "is valid from ", "set the clock", false},
	{"the certificate is no authority's", signed(func(c *x509.Certificate) { c.IsCA, c.MaxPathLenZero = false, false }), "not the certificate of an authority", "restore it", false},
	{"the key may not sign", signed(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign }), "may not sign certificates", "restore it", false},
	{"the certificate is signed by another", signedByAnother, "not signed by itself", "restore it", false},
}

// spoiledByRoot is what only root can do.
var spoiledByRoot = []spoil{
	{"the key is another user's", chown(keyFile), "ca-key.pem belongs to another user", "restore one of your own", false},
	{"the folder is another user's", chown("."), "belongs to another user", "a folder of your own", true},
}

func TestOpenRefuses(t *testing.T) {
	rows := spoiled
	if os.Geteuid() == 0 {
		rows = slices.Concat(spoiled, spoiledByRoot)
	}
	for _, row := range rows {
		t.Run(row.what, func(t *testing.T) {
			dir := t.TempDir()
			create(t, dir)
			row.do(t, dir)
			_, err := Open(dir)
			var refusal *Refusal
			if !errors.As(err, &refusal) || errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("opened: %v", err)
			}
			if !strings.Contains(refusal.Problem, row.problem) || !strings.Contains(refusal.Fix, row.fix) || !strings.Contains(err.Error(), refusal.Fix) {
				t.Errorf("%v\nwant a problem with %q and a fix with %q", err, row.problem, row.fix)
			}
			if _, err := Create(dir); errors.Is(err, fs.ErrExist) == row.stays {
				t.Errorf("created over it: %v", err)
			}
			fresh, err := Rotate(dir)
			if (err != nil) != row.stays {
				t.Fatalf("rotated: %v", err)
			}
			if err == nil && !same(fresh, open(t, dir)) {
				t.Error("what was made is not what is opened")
			}
		})
	}
}

func TestFilesOfOthersAreNotOurs(t *testing.T) {
	for _, row := range []struct {
		owner uint32
		user  int
		want  bool
	}{{1000, 1000, true}, {1001, 1000, false}, {0, 1000, true}, {1000, 0, false}, {0, 0, true}} {
		if got := ours(row.owner, row.user); got != row.want {
			t.Errorf("a file of %d is that of %d or root: %v", row.owner, row.user, got)
		}
	}
}

// TestAuthorityMadeElsewhere takes what an operator made with OpenSSL, if it
// has what leaves need.
func TestAuthorityMadeElsewhere(t *testing.T) {
	make := func(identifier string) string {
		dir := t.TempDir()
		out, err := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=corp",
			"-addext", "keyUsage=critical,keyCertSign", "-addext", "subjectKeyIdentifier="+identifier,
			"-keyout", filepath.Join(dir, keyFile), "-out", filepath.Join(dir, CertificateFile)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s(the package openssl has to be installed)", err, out)
		}
		return dir
	}
	a := open(t, make("hash"))
	if err := verify(a, leafOf(t, a, "api.example").Leaf, "api.example"); err != nil {
		t.Error(err)
	}
	if _, err := Open(make("none")); err == nil || !strings.Contains(err.Error(), "no subject key identifier") {
		t.Errorf("without a key identifier: %v", err)
	}
}

// TestCreateByMany has many create at a time: one of them does.
func TestCreateByMany(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	var creating sync.WaitGroup
	var made [16]*Authority
	for i := range made {
		creating.Go(func() {
			var err error
			if made[i], err = Create(dir); err != nil && !errors.Is(err, fs.ErrExist) {
				t.Error(err)
			}
		})
	}
	creating.Wait()
	winners := slices.DeleteFunc(made[:], func(a *Authority) bool { return a == nil })
	if len(winners) != 1 || !same(winners[0], open(t, dir)) {
		t.Errorf("%d succeeded", len(winners))
	}
}

// TestOpenDuringRotate never sees a pair that is none.
func TestOpenDuringRotate(t *testing.T) {
	dir := t.TempDir()
	create(t, dir)
	var opening sync.WaitGroup
	for range 4 {
		opening.Go(func() {
			for range 20 {
				if _, err := Open(dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 10 {
		if _, err := Rotate(dir); err != nil {
			t.Error(err)
		}
	}
	opening.Wait()
}

func TestRotate(t *testing.T) {
	dir := t.TempDir()
	first := create(t, dir)
	second, err := Rotate(dir)
	if err != nil {
		t.Fatal(err)
	}
	if same(first, second) || !same(second, open(t, dir)) || first.key.(*ecdsa.PrivateKey).Equal(second.key) {
		t.Error("the pair was not replaced, or not by what Rotate returned")
	}
	if verify(second, leafOf(t, first, "api.example").Leaf, "api.example") == nil {
		t.Error("who trusts the new authority trusts the old")
	}
	kept := read(t, dir, "ca-OLD-"+first.Certificate().SerialNumber.Text(16)+".pem")
	if !bytes.Equal(kept, first.PEM()) {
		t.Errorf("the old certificate was not kept as it was:\n%s", kept)
	}
	old, _ := x509.MarshalPKCS8PrivateKey(first.key)
	for _, name := range names(t, dir) {
		if block, _ := pem.Decode(read(t, dir, name)); block == nil || bytes.Equal(block.Bytes, old) {
			t.Errorf("%s holds the old key, or nothing", name)
		}
	}
	if _, err := Rotate(dir); err != nil || len(names(t, dir)) != 4 {
		t.Errorf("after a second rotation: %q, %v", names(t, dir), err)
	}
}

func TestRotateRemovesWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		first := create(t, dir)
		put(t, dir, "ca-OLD-note.pem", []byte("no certificate, and not ours to remove"))
		rotated := func() []string {
			if _, err := Rotate(dir); err != nil {
				t.Fatal(err)
			}
			return names(t, dir)
		}
		time.Sleep(time.Hour)
		kept := "ca-OLD-" + first.Certificate().SerialNumber.Text(16) + ".pem"
		if got := rotated(); !slices.Contains(got, kept) || len(got) != 4 {
			t.Errorf("after the first rotation: %q", got)
		}
		time.Sleep(time.Until(first.Certificate().NotAfter))
		if got := rotated(); slices.Contains(got, kept) || len(got) != 4 || !slices.Contains(got, "ca-OLD-note.pem") {
			t.Errorf("when the first has expired: %q", got)
		}
	})
}
