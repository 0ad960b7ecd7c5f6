// Package certs is the local certificate authority. It holds the CA's key and certificate and signs the
// certificates that egressd presents inside inspected TLS.
//
//	authority, err := certs.Open(dir)
//	if errors.Is(err, fs.ErrNotExist) {
//		authority, err = certs.Create(dir)
//	}
//	config := &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
//		return authority.Leaf(host) // the host that was decided, not what the hello says
//	}}
//
// The package signs for every valid name; the caller decides whether a host may have a certificate. The CA
// has no name constraints, because a later rule may require inspection of any host. The CA's key never
// leaves its folder. The key of the leaves never leaves the memory of the process.
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"
)

const (
	authorityYears = 5
	// backdate allows for clients whose clock is slow.
	backdate = time.Hour
)

// An Authority signs certificates for inspected hosts. [Create], [Open] and [Rotate] return one. It is
// safe for concurrent use.
type Authority struct {
	cert    *x509.Certificate
	key     crypto.Signer
	leafKey *ecdsa.PrivateKey // shared by all leaves
	leaves  cache
}

// Certificate returns the CA's certificate. Callers must not modify it.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// PEM returns the CA's certificate for clients that must trust it. It contains no key.
func (a *Authority) PEM() []byte { return encodeCertificate(a.cert.Raw) }

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newAuthority(cert *x509.Certificate, key *ecdsa.PrivateKey) (*Authority, error) {
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the leaves: %w", err)
	}
	return &Authority{cert: cert, key: key, leafKey: leafKey}, nil
}

// Ephemeral returns a new authority that is kept in memory alone.
func Ephemeral() (*Authority, error) {
	cert, key, err := generate(time.Now())
	if err != nil {
		return nil, err
	}
	return newAuthority(cert, key)
}

func generate(now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          randomSerial(),
		Subject:               pkix.Name{CommonName: subject()},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.AddDate(authorityYears, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read the authority's certificate back: %w", err)
	}
	return cert, key, nil
}

// randomSerial returns an unpredictable serial number of 128 bits (RFC 5280 §4.2.1.2).
func randomSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return new(big.Int).SetBytes(b[:])
}

// maxHostInSubject keeps the common name within 64 characters (RFC 5280 appendix A.1).
const maxHostInSubject = 40

// subject returns a name that differs for each installation and each authority.
func subject() string {
	name, err := os.Hostname()
	name = strings.Map(inSubject, name)
	if err != nil || name == "" {
		name = "localhost"
	}
	var b [4]byte
	rand.Read(b[:])
	return fmt.Sprintf("egressd CA %s %x", name[:min(len(name), maxHostInSubject)], b)
}

// inSubject drops characters that no host name contains.
func inSubject(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
		return r
	}
	return -1
}

// errNotMinted is the error for waiting callers if signing panicked.
var errNotMinted = errors.New("the certificate was not signed")

// Leaf returns a server certificate for exactly one host. Its lifetime is one day to one week, limited by
// the lifetime of the CA. The chain holds only the leaf, since a client that trusts the CA has its
// certificate.
//
// Host must be a canonical name or the canonical text of an address without brackets. Callers share the
// result and must not modify it. Concurrent calls for one host sign one certificate. Calls for other hosts
// do not wait for it.
func (a *Authority) Leaf(host string) (*tls.Certificate, error) {
	name, err := parseName(host)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	l, mine := a.leaves.claim(host, now)
	if !mine {
		<-l.minted
		return l.cert, l.err
	}
	defer close(l.minted) // also after a panic, to release waiting callers
	l.err = errNotMinted
	l.cert, l.renew, l.err = a.mint(name, now)
	return l.cert, l.err
}
