package certs

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// bundles returns the paths at which distributions keep trusted CA certificates.
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

// SystemRoots returns the first existing CA bundle of the system and its path. It ignores the environment,
// including SSL_CERT_FILE, because egressd need not trust what a shell trusts. If there is no bundle, the
// error wraps [fs.ErrNotExist].
func SystemRoots() (path string, pem []byte, err error) { return firstBundle(bundles()) }

// SystemPaths returns where distributions keep their CA bundles.
func SystemPaths() []string { return bundles() }

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

// Pool returns the roots that verify upstreams: those of the system and extra. Each element of extra is
// PEM: one or more certificate blocks and nothing else. The error names the index of a refused element.
func Pool(extra ...[]byte) (*x509.CertPool, error) { return poolFrom(bundles(), extra) }

func poolFrom(paths []string, extra [][]byte) (*x509.CertPool, error) {
	path, system, err := firstBundle(paths)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	// Distributions ship certificates that Go rejects; they are skipped.
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
