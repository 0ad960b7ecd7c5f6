package certs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestJavaReadsItsStores has keytool, of Java itself, make stores and read what became of them.
func TestJavaReadsItsStores(t *testing.T) {
	keytool, err := exec.LookPath("keytool")
	if err != nil {
		t.Skip("there is no keytool")
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(keytool, append([]string{"-J-Xshare:auto", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("keytool %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	company, err := Ephemeral()
	if err != nil {
		t.Fatal(err)
	}
	own, err := Ephemeral()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pem := filepath.Join(dir, "company.pem")
	if err := os.WriteFile(pem, company.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	for kind, flags := range map[string][]string{
		"JKS":                         {"-storetype", "JKS"},
		"PKCS #12":                    {"-storetype", "PKCS12"},
		"PKCS #12 without a password": {"-storetype", "PKCS12", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE", "-J-Dkeystore.pkcs12.macAlgorithm=NONE"},
	} {
		t.Run(kind, func(t *testing.T) {
			store := filepath.Join(t.TempDir(), "store")
			run(append(flags, "-storepass", "changeit", "-importcert", "-noprompt", "-alias", "company", "-file", pem, "-keystore", store)...)
			text, err := os.ReadFile(store)
			if err != nil {
				t.Fatal(err)
			}
			more, err := JavaStore(text, own.PEM())
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(store, more, 0o600); err != nil {
				t.Fatal(err)
			}
			if out := run("-list", "-keystore", store, "-storepass", "changeit"); strings.Count(out, "trustedCertEntry") != 2 || !strings.Contains(out, "egressd, ") {
				t.Error(out)
			}
		})
	}
	foreign := func(kind string) []byte {
		store := filepath.Join(t.TempDir(), "store")
		run("-storetype", kind, "-storepass", "another", "-importcert", "-noprompt", "-alias", "company", "-file", pem, "-keystore", store)
		text, err := os.ReadFile(store)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	text := foreign("PKCS12")
	for what, store := range map[string][]byte{"another password": text, "another password of a JKS": foreign("JKS"), "nothing": nil, "no store": []byte("hello"), "a part": text[:len(text)/2], "a part of JKS": {0xfe, 0xed, 0xfe, 0xed, 0, 0}} {
		if _, err := JavaStore(store, own.PEM()); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestAJavaStoreCostsLittle has openssl make stores whose passwords are hashed often, for the certificates or for the MAC.
func TestAJavaStoreCostsLittle(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("there is no openssl")
	}
	company, err := Ephemeral()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pem, store := filepath.Join(dir, "company.pem"), filepath.Join(dir, "store")
	if err := os.WriteFile(pem, company.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	for flags, costly := range map[string]bool{
		"-certpbe AES-256-CBC -iter 600":                false,
		"-certpbe AES-256-CBC -iter 600000 -nomaciter":  false,
		"-certpbe AES-256-CBC -iter 600000":             true, // twice
		"-certpbe AES-256-CBC -iter 1000001 -nomaciter": true,
		"-certpbe NONE -iter 1000001":                   true,
	} {
		args := append([]string{"pkcs12", "-export", "-nokeys", "-in", pem, "-out", store, "-passout", "pass:changeit"}, strings.Fields(flags)...)
		if out, err := exec.Command(openssl, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", flags, err, out)
		}
		text, err := os.ReadFile(store)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := rounds(text, 0); err != nil || (n > mostRounds) != costly {
			t.Errorf("%s: %d rounds, %v", flags, n, err)
		}
		began := time.Now()
		if _, err := JavaStore(text, company.PEM()); costly && (err == nil || time.Since(began) > time.Second) {
			t.Errorf("%s: it was read, after %v", flags, time.Since(began))
		}
	}
}
