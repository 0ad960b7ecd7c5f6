// Package testpki makes certificates for tests: authorities, the certificates that they sign, and certificates that
// no program should accept.
package testpki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"testing"
	"time"
)

// An Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate
	Pool        *x509.CertPool // which holds the authority alone
	key         *ecdsa.PrivateKey
}

// New returns an authority of its own.
func New(t testing.TB) *Authority {
	t.Helper()
	c := SelfSigned(t, func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: "authority of a test"}
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	a := &Authority{Certificate: c.Leaf, Pool: x509.NewCertPool(), key: c.PrivateKey.(*ecdsa.PrivateKey)}
	a.Pool.AddCert(a.Certificate)
	return a
}

// Server signs a server's certificate for the names, changed by change, which may be nil.
func (a *Authority) Server(t testing.TB, change func(*x509.Certificate), names ...string) tls.Certificate {
	t.Helper()
	return a.leaf(t, x509.ExtKeyUsageServerAuth, change, names)
}

// Client signs a client's certificate as Server does.
func (a *Authority) Client(t testing.TB, change func(*x509.Certificate), names ...string) tls.Certificate {
	t.Helper()
	return a.leaf(t, x509.ExtKeyUsageClientAuth, change, names)
}

func (a *Authority) leaf(t testing.TB, use x509.ExtKeyUsage, change func(*x509.Certificate), names []string) tls.Certificate {
	t.Helper()
	template := newTemplate(change)
	if template.DNSNames == nil {
		template.DNSNames = names
	}
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{use}
	}
	template.KeyUsage |= x509.KeyUsageDigitalSignature
	return a.Sign(t, template, newKey(t))
}

// Sign signs a certificate as it is, for the key.
func (a *Authority) Sign(t testing.TB, template *x509.Certificate, key crypto.Signer) tls.Certificate {
	t.Helper()
	return signed(t, template, a.Certificate, key, a.key)
}

// SelfSigned returns a certificate that its own key has signed, changed by change, which may be nil.
func SelfSigned(t testing.TB, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	template, key := newTemplate(change), newKey(t)
	return signed(t, template, template, key, key)
}

// Heavy returns the DER of a certificate that no program needs, with n entries of a kind.
func Heavy(t testing.TB, n int, add func(c *x509.Certificate, i int)) []byte {
	t.Helper()
	return SelfSigned(t, func(c *x509.Certificate) {
		for i := range n {
			add(c, i)
		}
	}).Certificate[0]
}

// UnknownUse adds one of the entries that take most memory for their bytes.
func UnknownUse(c *x509.Certificate, i int) {
	c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, asn1.ObjectIdentifier{1, i % 40})
}

// newTemplate returns a certificate that is valid from an hour ago for two hours.
func newTemplate(change func(*x509.Certificate)) *x509.Certificate {
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	if change != nil {
		change(c)
	}
	return c
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signed(t testing.TB, template, parent *x509.Certificate, key, by crypto.Signer) tls.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// KeyPair returns a new key and its public key, in PEM, as egressd policy build --keygen writes them.
func KeyPair(t testing.TB) (private, public []byte) {
	t.Helper()
	key := newKey(t)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	known, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: known})
}
