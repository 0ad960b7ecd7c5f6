package certs

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

const (
	leafValid   = 7 * 24 * time.Hour
	renewBefore = 24 * time.Hour // a leaf with less time left is replaced
)

// A subjectName is the subject of a leaf: a DNS name, or an address if addr is valid.
type subjectName struct {
	dns  string
	addr netip.Addr
}

const (
	maxNameLength  = 253 // RFC 1035 §2.3.4, without the root's empty label
	maxLabelLength = 63
)

var errNotCanonical = errors.New("it is neither a canonical name nor the canonical text of an address")

// parseName parses a canonical host without repairing it. The name in the certificate therefore equals the
// decided name byte for byte.
func parseName(host string) (subjectName, error) {
	if isName(host) {
		return subjectName{dns: host}, nil
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" || addr.Is4In6() || addr.String() != host {
		return subjectName{}, fmt.Errorf("certificate for %.80q: %w", host, errNotCanonical)
	}
	return subjectName{addr: addr}, nil
}

// isName reports whether host consists of lower-case labels, the last of which is not a number. Wildcards
// are not names.
func isName(host string) bool {
	if host == "" || len(host) > maxNameLength {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(host, ".") {
		if !isLabel(label) {
			return false
		}
		last = label
	}
	return strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
}

func isLabel(label string) bool {
	n := len(label)
	return n > 0 && n <= maxLabelLength && label[0] != '-' && label[n-1] != '-' &&
		strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// mint signs a leaf. From renew on it must be replaced.
func (a *Authority) mint(name subjectName, now time.Time) (cert *tls.Certificate, renew time.Time, err error) {
	template, err := a.template(name, now)
	if err != nil {
		return nil, time.Time{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("sign a certificate: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read a certificate back: %w", err)
	}
	renew = parsed.NotAfter
	if renew.Before(a.cert.NotAfter) { // otherwise a new leaf would not live longer
		renew = renew.Add(-renewBefore)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: parsed}, renew, nil
}

// template returns a server certificate with an empty subject, which makes the subject alternative name
// critical (RFC 5280 §4.2.1.6).
func (a *Authority) template(name subjectName, now time.Time) (*x509.Certificate, error) {
	if now.Before(a.cert.NotBefore) || !now.Before(a.cert.NotAfter) {
		return nil, fmt.Errorf("the authority's certificate is valid from %s to %s, and it is %s",
			date(a.cert.NotBefore), date(a.cert.NotAfter), date(now))
	}
	template := &x509.Certificate{
		SerialNumber:          randomSerial(),
		NotBefore:             later(now.Add(-backdate), a.cert.NotBefore),
		NotAfter:              earlier(now.Add(leafValid), a.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	if name.addr.IsValid() {
		template.IPAddresses = append(template.IPAddresses, name.addr.AsSlice())
	} else {
		template.DNSNames = append(template.DNSNames, name.dns)
	}
	return template, nil
}

func date(t time.Time) string { return t.UTC().Format(time.DateOnly) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
