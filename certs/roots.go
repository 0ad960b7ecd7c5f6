package certs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// bundles returns where distributions keep the authorities that they trust.
func bundles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Alpine, Arch, Gentoo, NixOS
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // CentOS, RHEL 7 and later
		"/etc/ssl/ca-bundle.pem",                            // openSUSE
		"/etc/ssl/cert.pem",                                 // Alpine, macOS, BSD
		"/etc/pki/tls/cacert.pem",                           // OpenELEC
	}
}

// SystemRoots returns the authorities that the distribution trusts: the first
// bundle that exists, and its path. The environment has no say, SSL_CERT_FILE
// included: what a shell trusts, egressd does not have to. Where there is no
// bundle the error wraps [fs.ErrNotExist].
func SystemRoots() (path string, pem []byte, err error) { return firstBundle(bundles()) }

func firstBundle(paths []string) (string, []byte, error) {
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", nil, fmt.Errorf("system roots: %w", err)
		}
		if !bytes.Contains(text, []byte("-----BEGIN CERTIFICATE-----")) {
			return "", nil, fmt.Errorf("system roots: %s holds no certificate; reinstall the package ca-certificates", path)
		}
		return path, text, nil
	}
	return "", nil, fmt.Errorf("system roots: none of %q: %w; install the package ca-certificates", paths, fs.ErrNotExist)
}

// Pool returns what upstreams are verified against: the system's roots, and
// those in extra, each of which is PEM with at least one certificate and
// nothing else. The error says which of extra was refused, counted from 0.
func Pool(extra ...[]byte) (*x509.CertPool, error) { return poolFrom(bundles(), extra) }

func poolFrom(paths []string, extra [][]byte) (*x509.CertPool, error) {
	path, system, err := firstBundle(paths)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	// Not strict: distributions ship certificates that Go does not take.
	if !pool.AppendCertsFromPEM(system) {
		return nil, fmt.Errorf("system roots: %s holds no certificate that can be read", path)
	}
	for i, text := range extra {
		all, err := parseCertificates(text)
		if err != nil {
			return nil, fmt.Errorf("extra roots %d: %w", i, err)
		}
		for _, cert := range all {
			pool.AddCert(cert)
		}
	}
	return pool, nil
}
