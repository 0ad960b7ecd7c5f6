package e2e

import (
	"bufio"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// flaws are what can be wrong with a host's TLS, by the first label of its
// name in looked-at.allowed.test and opaque.allowed.test.
func flaws() map[string]func(*flaw) {
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
func (o *origin) flawed(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	label, domain, _ := strings.Cut(hello.ServerName, ".")
	spoil := flaws()[label]
	if spoil == nil || domain != "looked-at.allowed.test" && domain != "opaque.allowed.test" {
		return nil, nil
	}
	f := &flaw{
		leaf: leafTemplate(hello.ServerName), issuer: o.ca.cert, issuerKey: o.ca.key, key: o.ca.key,
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

// TestUpstreamCertificates has a request meet every flaw. The client, which
// trusts egressd, reads why it was not passed on; nothing of it was.
func TestUpstreamCertificates(t *testing.T) {
	covers(t, "MI-23")
	d := start(t, policyText(t, "P1"))
	before := d.descriptors()
	for label := range flaws() {
		for _, way := range []string{wayInside, wayInsideH2} {
			t.Run(label+" "+way, func(t *testing.T) { d.refusesUpstream(t, label+".looked-at.allowed.test", way) })
		}
	}
	d.healthy(t, before)
}

func (d *daemon) refusesUpstream(t *testing.T, host, way string) {
	v := &vector{
		ID: "MI-23", Says: "a flawed upstream", Policy: "P1", Inside: host + ":443",
		Send:   []string{"GET /x HTTP/1.1\r\nHost: " + host + "\r\n\r\n"},
		Expect: expectation{Status: []int{502}},
	}
	s := d.observe(t, v, way, "")
	if len(s.answers) != 1 || s.answers[0].status != 502 || s.answers[0].problem().Class != string(policy.NetworkTLS) {
		t.Fatalf("answered %+v, %v", s.answers, s.err)
	}
	if s.heard != "" {
		t.Errorf("upstream received %q", s.heard)
	}
	why := func(r record.Record) bool {
		return r.Kind == record.KindClose && r.Outcome == string(policy.NetworkTLS)
	}
	if !slices.ContainsFunc(s.records, why) {
		t.Errorf("no record says why: %+v", s.records)
	}
	if s.held > 0 || !s.alive {
		t.Errorf("%d sockets are left, alive: %v", s.held, s.alive)
	}
}

// TestNeverInspected reaches a host with a flawed certificate that the policy
// keeps shut: it is the client that judges it.
func TestNeverInspected(t *testing.T) {
	covers(t, "MI-23")
	text := strings.Replace(policyText(t, "P1"), "extra_roots: [lab.pem]", `extra_roots: [lab.pem], never: ["*.opaque.allowed.test"]`, 1)
	text = strings.Replace(text, "  - allowed.test\n", "  - allowed.test\n  - \"*.opaque.allowed.test\"\n", 1)
	d := start(t, text)
	c, _, err := d.open("self-signed.opaque.allowed.test:443", "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	inner := tls.Client(c, &tls.Config{ServerName: "self-signed.opaque.allowed.test", InsecureSkipVerify: true})
	if _, err := inner.Write([]byte("GET /x HTTP/1.1\r\nHost: self-signed.opaque.allowed.test\r\nConnection: close\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if cn := inner.ConnectionState().PeerCertificates[0].Issuer.CommonName; cn != "lab" {
		t.Errorf("the certificate was made by %q", cn)
	}
	if a, err := readAnswer(bufio.NewReader(inner), "GET"); err != nil || a.status != 200 {
		t.Errorf("status %d, %v", a.status, err)
	}
	inner.Close()
	if r := d.closeRecord(t, c.LocalAddr().String()); r.TLS == nil || r.TLS.Inspected {
		t.Errorf("recorded %+v", r.TLS)
	}
}
