// Package certs is the local certificate authority: the key and certificate
// that egressd signs with where it has to look inside TLS, and the
// certificates that it shows there.
//
//	authority, err := certs.Open(dir)
//	if errors.Is(err, fs.ErrNotExist) {
//		authority, err = certs.Create(dir)
//	}
//	config := &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
//		return authority.Leaf(host) // the host that was decided, not what the hello says
//	}}
//
// Whether a host may have a certificate is not asked here: an authority signs
// for every name that can stand in a certificate. It has no name constraints,
// since any host may get a rule that needs to look at its requests. The
// authority's key never leaves its folder, and the key of the leaves never
// leaves the memory of the process.
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
	// backdate is how far the clock of whoever verifies may be behind.
	backdate = time.Hour
)

// An Authority signs certificates for the hosts whose tunnels end in egressd.
// It is made by [Create], [Open] or [Rotate], and safe for concurrent use.
type Authority struct {
	cert    *x509.Certificate
	key     crypto.Signer
	leafKey *ecdsa.PrivateKey // of all leaves
	leaves  cache
}

// Certificate returns the authority's own certificate. It is shared, and must
// not be changed.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// PEM returns the authority's certificate, for those who are to trust it. It
// never holds a key.
func (a *Authority) PEM() []byte { return encodeCertificate(a.cert.Raw) }

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// newAuthority returns the authority of a certificate and its key.
func newAuthority(cert *x509.Certificate, key *ecdsa.PrivateKey) (*Authority, error) {
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the leaves: %w", err)
	}
	return &Authority{cert: cert, key: key, leafKey: leafKey}, nil
}

// generate makes a key and a certificate that it signs itself.
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

// randomSerial returns a serial number of 128 random bits, which nobody can
// foresee and no two certificates share (RFC 5280 §4.1.2.2).
func randomSerial() *big.Int {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return new(big.Int).SetBytes(b[:])
}

// maxHostInSubject keeps the subject within the 64 characters that a common
// name may have (RFC 5280 appendix A.1).
const maxHostInSubject = 40

// subject names an authority such that two installations, and two authorities
// of one, differ.
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

// inSubject drops what no host name holds.
func inSubject(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
		return r
	}
	return -1
}

// errNotMinted is what those who wait get where signing panicked.
var errNotMinted = errors.New("the certificate was not signed")

// Leaf returns a certificate for host and for nothing else, to be shown to a
// client that trusts the authority: for the server side of TLS, valid for a
// week at most and for a day at least, unless the authority's own time is
// shorter. The chain holds the leaf alone, since a client that trusts the
// authority has its certificate.
//
// Host is a canonical name, or the canonical text of an address without
// brackets; anything else is an error. The result is shared with other
// callers and must not be changed. However many ask for one host at a time,
// it is signed once; who asks for another host does not wait for it.
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
	defer close(l.minted) // after a panic too, or those who wait would for ever
	l.err = errNotMinted
	l.cert, l.renew, l.err = a.mint(name, now)
	return l.cert, l.err
}
