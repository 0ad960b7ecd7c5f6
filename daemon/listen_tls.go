package daemon

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/authority"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/proxy/inspect"
)

// serveOn serves one listener until the server is shut down.
func (ls *listeners) serveOn(l boundListener) error {
	if strings.HasPrefix(l.name, file.TLSListener) {
		return ls.daemon.Server.ServeTLS(l.Listener, l.name, ls.overTLS.Load)
	}
	return ls.daemon.Server.Serve(l.Listener, l.name)
}

// tlsListener makes what the TLS listeners show and ask for, or nil where
// there is none. with, where it is given, has the authority already.
func (ls *listeners) tlsListener(c *config.Config, with *inspect.Inspection) (*proxy.TLSListener, error) {
	if !slices.ContainsFunc(c.AllListeners(), func(l string) bool { return strings.HasPrefix(l, file.TLSListener) }) {
		return nil, nil
	}
	l := &proxy.TLSListener{Names: append(ownNames(), c.File.Listen.ServerNames...)}
	if with != nil {
		l.Authority = with.Authority
	} else {
		dir, err := c.CADir()
		if err != nil {
			return nil, err
		}
		if l.Authority, err = authority.Open(dir, ls.daemon.Talk); err != nil {
			return nil, err
		}
	}
	if c.File.Listen.ClientCA == "" {
		return l, nil
	}
	text, err := os.ReadFile(c.Relative(c.File.Listen.ClientCA))
	if err == nil {
		l.Clients, err = clientAuthorities(text)
	}
	if err != nil {
		return nil, hint.Misused(fmt.Errorf("listen.client_ca: %w", err), "correct listen.client_ca in "+c.Path)
	}
	return l, nil
}

// ownNames are the names of this host that clients may know it by.
func ownNames() []string {
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil {
		if name, err := policy.ParseName(host); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// clientAuthorities reads certificates of authorities, and nothing else.
func clientAuthorities(text []byte) (*x509.CertPool, error) {
	pool, found := x509.NewCertPool(), 0
	for rest := bytes.TrimSpace(text); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("it holds something else than certificates in PEM")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", found+1, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %d is not one of an authority", found+1)
		}
		pool.AddCert(cert)
		found++
	}
	if found == 0 {
		return nil, errors.New("it holds no certificate")
	}
	return pool, nil
}
