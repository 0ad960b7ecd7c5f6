package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// load reads and checks the pair in dir.
func load(dir string) (*Authority, error) {
	certPath, keyPath := filepath.Join(dir, CertificateFile), filepath.Join(dir, keyFile)
	text, err := os.ReadFile(certPath)
	if err != nil {
		return nil, err
	}
	cert, err := parseOne(text)
	if err == nil {
		err = checkAuthority(cert)
	}
	if err != nil {
		return nil, &Refusal{certPath + ": " + err.Error(), "restore it, or " + makeNew}
	}
	if err := checkTime(certPath, cert, time.Now()); err != nil {
		return nil, err
	}
	if err := checkPrivate(keyPath); err != nil {
		return nil, err
	}
	key, err := readKey(keyPath)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, &Refusal{keyPath + " is not the key of " + certPath, "restore the one that belongs to the other, or " + makeNew}
	}
	return newAuthority(cert, key)
}

// checkAuthority returns an error if strict clients would reject cert as a CA: RFC 5280 §4.2.1.2,
// §4.2.1.3 and §4.2.1.9.
func checkAuthority(cert *x509.Certificate) error {
	switch {
	case !cert.BasicConstraintsValid || !cert.IsCA:
		return errors.New("it is not the certificate of an authority")
	case cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("its key may not sign certificates")
	case len(cert.SubjectKeyId) == 0:
		return errors.New("it has no subject key identifier")
	}
	if err := cert.CheckSignatureFrom(cert); err != nil {
		return fmt.Errorf("it is not signed by itself: %w", err)
	}
	return nil
}

func checkTime(path string, cert *x509.Certificate, now time.Time) error {
	if !now.Before(cert.NotAfter) {
		return &Refusal{fmt.Sprintf("%s has expired on %s", path, date(cert.NotAfter)), makeNew}
	}
	if now.Before(cert.NotBefore) {
		return &Refusal{fmt.Sprintf("%s is valid from %s on, and it is %s", path, date(cert.NotBefore), date(now)), "set the clock, or " + makeNew}
	}
	return nil
}

// checkPrivate refuses a key that users other than this one and root can read.
func checkPrivate(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// A wrapped fs.ErrNotExist would mean that there is no authority.
		return &Refusal{path + " is missing", "restore it, or " + makeNew}
	case err != nil:
		return err
	case !ours(owner(info), os.Geteuid()):
		return &Refusal{path + " belongs to another user, who can read it", "restore one of your own, or " + makeNew}
	case info.Mode().Perm()&0o077 != 0:
		return &Refusal{path + " can be read by others than its owner", "chmod 600 " + path + ", and egressd ca rotate if somebody may have read it"}
	}
	return nil
}

// maxKeyBytes exceeds the size of a PEM key.
const maxKeyBytes = 64 << 10

// readKey reads a P-256 key in PKCS #8. It returns a [*Refusal] for other contents.
func readKey(path string) (*ecdsa.PrivateKey, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyBytes))
	if err != nil {
		return nil, err
	}
	key, err := parseKey(text)
	if err != nil {
		return nil, &Refusal{path + ": " + err.Error(), "restore it, or " + makeNew}
	}
	return key, nil
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("it holds no key in PKCS #8")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it holds no key that can be read: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("its key is not of the kind ECDSA P-256")
	}
	return key, nil
}

// parseOne parses PEM with exactly one certificate.
func parseOne(text []byte) (*x509.Certificate, error) {
	all, err := parseCertificates(text)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("it holds %d certificates where there should be one", len(all))
	}
	return all[0], nil
}

// OnlyCertificates returns PEM that consists of certificates alone, with nothing between them. The error says what is
// wrong with text.
func OnlyCertificates(text []byte) (all []byte, err error) {
	certificates, err := parseCertificates(text)
	for _, c := range certificates {
		all = append(all, encodeCertificate(c.Raw)...)
	}
	return all, err
}

// parseCertificates parses PEM with at least one certificate and no other blocks.
func parseCertificates(text []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it holds a %.40q where a certificate should be", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("its certificate %d cannot be read: %w", len(all)+1, err)
		}
		all = append(all, cert)
	}
	if len(all) == 0 {
		return nil, errors.New("it holds no certificate in PEM")
	}
	return all, nil
}
