package certs

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func create(t testing.TB, dir string) *Authority {
	t.Helper()
	a, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func leafOf(t testing.TB, a *Authority, host string) *tls.Certificate {
	t.Helper()
	c, err := a.Leaf(host)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var hosts = []string{
	"api.example", "localhost", "under_score.example", "xn--bcher-kva.example", "r3---sn.example",
	strings.Repeat(strings.Repeat("a", 62)+".", 3) + strings.Repeat("b", 64-3),
	"192.0.2.7", "2001:db8::7", "::1",
}

// TestAuthorityIsOne looks at what strict clients ask of an authority.
func TestAuthorityIsOne(t *testing.T) {
	c := create(t, t.TempDir()).Certificate()
	if !c.IsCA || c.MaxPathLen != 0 || !c.MaxPathLenZero || !isCritical(c, 2, 5, 29, 19) {
		t.Error("the basic constraints are not critical CA:TRUE with a path length of 0")
	}
	if c.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign || !isCritical(c, 2, 5, 29, 15) {
		t.Errorf("the key usage is %b, or not critical", c.KeyUsage)
	}
	if len(c.SubjectKeyId) == 0 {
		t.Error("there is no subject key identifier")
	}
	if c.SerialNumber.BitLen() > 128 || c.SerialNumber.BitLen() < 64 {
		t.Errorf("the serial number has %d bits; want 128 random ones", c.SerialNumber.BitLen())
	}
	host, _ := os.Hostname()
	if name := c.Subject.CommonName; !strings.HasPrefix(name, "egressd CA "+host[:min(len(host), 8)]) || len(name) > 64 {
		t.Errorf("its name is %q", name)
	}
	if other := create(t, t.TempDir()).Certificate(); other.Subject.CommonName == c.Subject.CommonName || other.SerialNumber.Cmp(c.SerialNumber) == 0 {
		t.Error("two authorities have one name or number")
	}
	if d := c.NotAfter.Sub(c.NotBefore); d < 5*365*24*time.Hour || d > 5*366*24*time.Hour+2*time.Hour {
		t.Errorf("it is valid for %s", d)
	}
}

func isCritical(c *x509.Certificate, oid ...int) bool {
	return slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(oid) && e.Critical })
}

func TestLeafIsForItsHostAlone(t *testing.T) {
	a := create(t, t.TempDir())
	for _, host := range hosts {
		c := leafOf(t, a, host)
		if got := subjects(c.Leaf); len(got) != 1 || got[0] != host {
			t.Errorf("the leaf of %s is for %q", host, got)
		}
		if len(c.Certificate) != 1 {
			t.Errorf("%s: the chain has %d certificates; want the leaf alone", host, len(c.Certificate))
		}
		if err := verify(a, c.Leaf, host); err != nil {
			t.Errorf("%s: %v", host, err)
		}
		if verify(a, c.Leaf, "other.example") == nil || verify(a, c.Leaf, "x."+host) == nil {
			t.Errorf("the leaf of %s verifies for another host", host)
		}
	}
}

func subjects(c *x509.Certificate) (all []string) {
	all = append(all, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	all = append(all, c.EmailAddresses...)
	for _, u := range c.URIs {
		all = append(all, u.String())
	}
	return all
}

func verify(a *Authority, leaf *x509.Certificate, host string) error {
	o := options(host)
	o.Roots.AddCert(a.Certificate())
	_, err := leaf.Verify(o)
	return err
}

func options(host string) x509.VerifyOptions {
	return x509.VerifyOptions{Roots: x509.NewCertPool(), DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
}

func TestLeafIsWhatStrictClientsWant(t *testing.T) {
	a := create(t, t.TempDir())
	c := leafOf(t, a, "api.example").Leaf
	if string(c.AuthorityKeyId) != string(a.Certificate().SubjectKeyId) {
		t.Error("the authority key identifier is not that of the authority")
	}
	if c.KeyUsage != x509.KeyUsageDigitalSignature || !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) {
		t.Errorf("key usage %b, extended %v", c.KeyUsage, c.ExtKeyUsage)
	}
	if c.IsCA || !c.BasicConstraintsValid {
		t.Error("the basic constraints do not say CA:FALSE")
	}
	if c.Subject.String() != "" || !isCritical(c, 2, 5, 29, 17) {
		t.Error("the subject is empty and the alternative name not critical, or the other way round")
	}
	if other := leafOf(t, a, "b.example").Leaf; other.SerialNumber.Cmp(c.SerialNumber) == 0 {
		t.Error("two leaves have one serial number")
	} else if !a.leafKey.PublicKey.Equal(other.PublicKey) || !a.leafKey.PublicKey.Equal(c.PublicKey) {
		t.Error("the leaves have different keys")
	}
	o := options("api.example")
	o.Roots.AddCert(a.Certificate())
	o.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := c.Verify(o); err == nil {
		t.Error("the leaf passes for a client's")
	}
}

// TestOpenSSLVerifiesStrictly asks the verifier that most clients link.
func TestOpenSSLVerifiesStrictly(t *testing.T) {
	dir := t.TempDir()
	a := create(t, dir)
	for _, host := range hosts {
		path := filepath.Join(t.TempDir(), "leaf.pem")
		if err := os.WriteFile(path, encodeCertificate(leafOf(t, a, host).Certificate[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		kind := "-verify_hostname"
		if net.ParseIP(host) != nil {
			kind = "-verify_ip"
		}
		out, err := exec.Command("openssl", "verify", "-x509_strict", "-check_ss_sig", "-purpose", "sslserver", "-no-CApath",
			"-CAfile", filepath.Join(dir, CertificateFile), kind, host, path).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s(the package openssl has to be installed)", host, err, out)
		}
	}
}

func TestHandshake(t *testing.T) {
	a := create(t, t.TempDir())
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.PEM()) {
		t.Fatal("PEM holds no certificate")
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, host := range hosts {
			client, server := net.Pipe()
			var served sync.WaitGroup
			served.Go(func() {
				defer server.Close()
				conn := tls.Server(server, &tls.Config{Certificates: []tls.Certificate{*leafOf(t, a, host)}})
				io.WriteString(conn, "hello")
			})
			conn := tls.Client(client, &tls.Config{RootCAs: pool, ServerName: host, MaxVersion: version})
			got := make([]byte, 5)
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
				t.Errorf("%s over %s: %q, %v", host, tls.VersionName(version), got, err)
			}
			client.Close()
			served.Wait()
		}
	}
}

func TestNamesThatHaveNoLeaf(t *testing.T) {
	a := create(t, t.TempDir())
	for _, host := range []string{
		"", ".", "a.", ".a", "a..b", "*", "*.example", "A.example", "-a.example", "a-.example", "a b", "a\x00.example", "a\n.example",
		"bücher.example", "a/b", "a:443", "[::1]", "http://a.example", "user@a.example", "a%2eb",
		"1.2.3", "1.2.3.4.5", "127.1", "0x7f000001", "a.0x1", "01.2.3.4", "256.1.1.1", "a.123",
		"::ffff:192.0.2.7", "fe80::1%eth0", "2001:DB8::7", "2001:db8:0::7",
		strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "a",
	} {
		if c, err := a.Leaf(host); err == nil {
			t.Errorf("%q has a leaf for %q", host, subjects(c.Leaf))
		}
	}
	if n := len(a.leaves.byHost); n != 0 {
		t.Errorf("%d names that were refused are in the cache", n)
	}
}

// FuzzLeaf holds that a name has a leaf for exactly itself, or none.
func FuzzLeaf(f *testing.F) {
	for _, host := range hosts {
		f.Add(host)
	}
	for _, host := range []string{"*.example", "1.2.3", "::ffff:192.0.2.7", "a..b", "0x1"} {
		f.Add(host)
	}
	a := create(f, f.TempDir())
	f.Fuzz(func(t *testing.T, host string) {
		c, err := a.Leaf(host)
		if err != nil {
			return
		}
		if got := subjects(c.Leaf); len(got) != 1 || got[0] != host {
			t.Errorf("the leaf of %q is for %q", host, got)
		}
		if err := verify(a, c.Leaf, host); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	})
}

// A countingKey is an authority's key that counts what it signs. Where hold is
// not nil, the first signature waits for it.
type countingKey struct {
	crypto.Signer
	signed atomic.Int32
	hold   chan struct{}
}

func (k *countingKey) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if k.signed.Add(1) == 1 && k.hold != nil {
		<-k.hold
	}
	return k.Signer.Sign(rand, digest, opts)
}

// counted has a sign with a key that counts.
func counted(a *Authority, hold chan struct{}) *countingKey {
	k := &countingKey{Signer: a.key, hold: hold}
	a.key = k
	return k
}

// TestOneNameIsSignedOnce has a hundred ask for one name while its signature
// is being made, and one for another, who must not have to wait.
func TestOneNameIsSignedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := create(t, t.TempDir())
		key := counted(a, make(chan struct{}))
		var asking sync.WaitGroup
		var got [100]*tls.Certificate
		for i := range got {
			asking.Go(func() { got[i], _ = a.Leaf("api.example") })
		}
		synctest.Wait()
		leafOf(t, a, "other.example")
		if n := key.signed.Load(); n != 2 {
			t.Errorf("%d signatures for two names", n)
		}
		close(key.hold)
		asking.Wait()
		for i := range got {
			if got[i] == nil || got[i] != got[0] {
				t.Fatal("some got another certificate, or none")
			}
		}
		if n := key.signed.Load(); n != 2 {
			t.Errorf("%d signatures for two names", n)
		}
	})
}

func TestLeafIsMintedAgainInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := create(t, t.TempDir())
		first := leafOf(t, a, "api.example")
		if now := time.Now(); first.Leaf.NotBefore != a.Certificate().NotBefore || !first.Leaf.NotAfter.Equal(now.Add(7*24*time.Hour)) {
			t.Errorf("valid from %s to %s, asked at %s", first.Leaf.NotBefore, first.Leaf.NotAfter, now)
		}
		time.Sleep(6*24*time.Hour - time.Second)
		if leafOf(t, a, "api.example") != first {
			t.Error("minted again with more than a day left")
		}
		time.Sleep(time.Second)
		second := leafOf(t, a, "api.example")
		if second == first || !second.Leaf.NotBefore.Equal(time.Now().Add(-time.Hour)) {
			t.Errorf("with a day left, the leaf is valid from %s", second.Leaf.NotBefore)
		}
		if leafOf(t, a, "api.example") != second {
			t.Error("the new one is not kept")
		}
	})
}

// TestLeafEndsWithItsAuthority is about the last days of an authority: leaves
// are cut, not minted over and over, and after it there are none.
func TestLeafEndsWithItsAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := create(t, t.TempDir())
		end := a.Certificate().NotAfter
		time.Sleep(time.Until(end) - 2*time.Hour)
		key := counted(a, nil)
		for range 3 {
			if c := leafOf(t, a, "api.example"); !c.Leaf.NotAfter.Equal(end) {
				t.Errorf("valid until %s, its authority until %s", c.Leaf.NotAfter, end)
			}
		}
		if n := key.signed.Load(); n != 1 {
			t.Errorf("signed %d times", n)
		}
		time.Sleep(2 * time.Hour)
		if _, err := a.Leaf("api.example"); err == nil || !strings.Contains(err.Error(), "certificate is valid from ") {
			t.Errorf("after its end: %v", err)
		}
	})
}

// TestClockSetBack has a leaf of tomorrow not be shown today.
func TestClockSetBack(t *testing.T) {
	a := create(t, t.TempDir())
	now := time.Now()
	l, _ := a.leaves.claim("api.example", now)
	l.cert, l.renew, l.err = a.mint(subjectName{dns: "api.example"}, now.Add(48*time.Hour))
	close(l.minted)
	if leafOf(t, a, "api.example").Leaf.NotBefore.After(now) {
		t.Error("a leaf that is not valid yet was handed out")
	}
}

func TestCacheIsBounded(t *testing.T) {
	a := create(t, t.TempDir())
	key := counted(a, nil)
	ask := func(i int) { leafOf(t, a, "h"+strconv.Itoa(i)+".example") }
	for i := range maxLeaves {
		ask(i)
	}
	ask(0)
	ask(maxLeaves) // in the place of 1, the one whose last use is the longest ago
	if n := len(a.leaves.byHost); n != maxLeaves || a.leaves.recent.Len() != n {
		t.Errorf("%d leaves by host, %d by use; want %d", n, a.leaves.recent.Len(), maxLeaves)
	}
	before := key.signed.Load()
	ask(0)
	if key.signed.Load() != before {
		t.Error("a leaf was dropped that was used of late")
	}
	ask(1)
	if key.signed.Load() != before+1 {
		t.Error("the leaf whose last use is the longest ago was kept")
	}
}

// TestFailureIsNotKept has the next one who asks try again.
func TestFailureIsNotKept(t *testing.T) {
	a := create(t, t.TempDir())
	whole := a.key
	a.key = brokenKey{whole}
	if _, err := a.Leaf("api.example"); err == nil {
		t.Fatal("a leaf without a signature")
	}
	a.key = whole
	leafOf(t, a, "api.example")
}

// TestAPanicLeavesNobodyWaiting has a key panic for the first of two who ask.
func TestAPanicLeavesNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := create(t, t.TempDir())
		whole := a.key
		hold := make(chan struct{})
		a.key = panickingKey{whole, hold}
		var asking sync.WaitGroup
		asking.Go(func() {
			defer func() {
				if recover() == nil {
					t.Error("the key did not panic")
				}
			}()
			a.Leaf("api.example")
		})
		synctest.Wait()
		asking.Go(func() {
			if c, err := a.Leaf("api.example"); err == nil {
				t.Errorf("a leaf without a signature: %v", c)
			}
		})
		synctest.Wait()
		close(hold)
		asking.Wait()
		a.key = whole
		leafOf(t, a, "api.example")
	})
}

// A panickingKey waits for hold and panics.
type panickingKey struct {
	crypto.Signer
	hold chan struct{}
}

func (k panickingKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	<-k.hold
	panic("the key is out of order")
}

type brokenKey struct{ crypto.Signer }

func (brokenKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, fmt.Errorf("the key is out of order")
}
