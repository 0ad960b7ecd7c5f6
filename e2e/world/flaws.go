package world

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"time"
)

// Flaws are what can be wrong with a host's TLS, by the first label of its
// name in looked-at.allowed.test and opaque.allowed.test.
func Flaws() map[string]func(*flaw) {
	return map[string]func(*flaw){
		"expired":     func(f *flaw) { f.leaf.NotAfter = time.Now().Add(-time.Minute) },
		"early":       func(f *flaw) { f.leaf.NotBefore = time.Now().Add(time.Hour) },
		"other-host":  func(f *flaw) { f.leaf.DNSNames = []string{"elsewhere.test"} },
		"no-name":     func(f *flaw) { f.leaf.Subject.CommonName, f.leaf.DNSNames = f.leaf.DNSNames[0], nil },
		"for-clients": func(f *flaw) { f.leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} },
		"self-signed": func(f *flaw) { f.issuer = nil },
		"stranger":    func(f *flaw) { f.between(&x509.Certificate{Subject: pkix.Name{CommonName: "stranger"}}); f.chain = nil },
		"sha1":        func(f *flaw) { f.leaf.SignatureAlgorithm = x509.ECDSAWithSHA1 },
		"rsa1024":     func(f *flaw) { f.key, f.err = rsa.GenerateKey(rand.Reader, 1024) },
		"constrained": func(f *flaw) {
			f.between(&x509.Certificate{PermittedDNSDomains: []string{"elsewhere.test"}, PermittedDNSDomainsCritical: true})
		},
		"tls11":         func(f *flaw) { f.config.MaxVersion = tls.VersionTLS11 },
		"wants-client":  func(f *flaw) { f.config.ClientAuth = tls.RequireAnyClientCert },
		"wants-client2": func(f *flaw) { f.config.ClientAuth, f.config.MaxVersion = tls.RequireAnyClientCert, tls.VersionTLS12 },
	}
}

// A flaw is the TLS of a host while something is made wrong with it.
type flaw struct {
	leaf      *x509.Certificate
	key       crypto.Signer
	issuer    *x509.Certificate // nil: the leaf itself
	issuerKey crypto.Signer
	chain     [][]byte
	config    *tls.Config
	err       error
}

// between puts an intermediate authority in.
func (f *flaw) between(template *x509.Certificate) {
	template.SerialNumber, template.IsCA, template.BasicConstraintsValid = big.NewInt(7), true, true
	template.NotBefore, template.NotAfter = f.leaf.NotBefore, f.leaf.NotAfter
	template.KeyUsage = x509.KeyUsageCertSign
	if template.Subject.CommonName == "" {
		template.Subject.CommonName = "between"
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.err = err
		return
	}
	der, err := x509.CreateCertificate(rand.Reader, template, f.issuer, key.Public(), f.issuerKey)
	if err != nil {
		f.err = err
		return
	}
	f.issuer, f.err = x509.ParseCertificate(der)
	f.issuerKey, f.chain = key, [][]byte{der}
}

// flawed returns the TLS of a host of which something is wrong, and nil for
// every other.
func (o *Origin) flawed(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	label, domain, _ := strings.Cut(hello.ServerName, ".")
	spoil := Flaws()[label]
	if spoil == nil || domain != "looked-at.allowed.test" && domain != "opaque.allowed.test" {
		return nil, nil
	}
	f := &flaw{
		leaf: leafTemplate(hello.ServerName), issuer: o.Ca.cert, issuerKey: o.Ca.key, key: o.Ca.key,
		config: &tls.Config{MinVersion: tls.VersionTLS10, NextProtos: o.tls.NextProtos},
	}
	spoil(f)
	return f.sign()
}

func (f *flaw) sign() (*tls.Config, error) {
	if f.err != nil {
		return nil, f.err
	}
	if f.issuer == nil {
		f.issuer = f.leaf
	}
	der, err := x509.CreateCertificate(rand.Reader, f.leaf, f.issuer, f.key.Public(), f.issuerKey)
	if err != nil {
		return nil, err
	}
	f.config.Certificates = []tls.Certificate{{Certificate: append([][]byte{der}, f.chain...), PrivateKey: f.key}}
	return f.config, nil
}
