package main

import (
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
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/elazarl/goproxy"
)

// inspect has p look into every tunnel to a port, verify the far side with the
// roots in a file, and write the certificate of a new authority to another.
// The authority that goproxy brings is RSA: each of its leaves takes a new RSA
// key, so a P-256 one shows what goproxy can do.
func inspect(p *goproxy.ProxyHttpServer, port, roots, certificate string) error {
	pool, err := poolOf(roots)
	if err != nil {
		return err
	}
	ca, err := newAuthority()
	if err != nil {
		return fmt.Errorf("making an authority: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate[0]})
	if err := os.WriteFile(certificate, text, 0o644); err != nil {
		return err
	}
	p.Tr.TLSClientConfig = &tls.Config{RootCAs: pool}
	p.CertStore = &store{leaves: make(map[string]*tls.Certificate)}
	look := &goproxy.ConnectAction{Action: goproxy.ConnectMitm, TLSConfig: goproxy.TLSConfigFromCA(&ca)}
	p.OnRequest(toPort(port)).HandleConnectFunc(func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		return look, host
	})
	return nil
}

func toPort(port string) goproxy.ReqConditionFunc {
	return func(r *http.Request, _ *goproxy.ProxyCtx) bool { return strings.HasSuffix(r.Host, ":"+port) }
}

func poolOf(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(file + " holds no certificate")
	}
	return pool, nil
}

// newAuthority makes a P-256 authority that lives for a day.
func newAuthority() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "goproxy in a benchmark"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// A store keeps every leaf. Two that ask for a new name at once may both make
// one.
type store struct {
	mu     sync.Mutex
	leaves map[string]*tls.Certificate // guarded by mu
}

// Fetch implements [goproxy.CertStorage].
func (s *store) Fetch(name string, sign func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	if leaf := s.look(name); leaf != nil {
		return leaf, nil
	}
	leaf, err := sign()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaves[name] = leaf
	return leaf, nil
}

func (s *store) look(name string) *tls.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaves[name]
}
