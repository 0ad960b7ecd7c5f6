package sandbox

import (
	"crypto/x509"
	"strings"

	"github.com/egressd/egressd/policy"
)

// CertificateNames returns the names in a verified client certificate: canonical DNS names, and SPIFFE IDs
// (URIs of that scheme). Wildcards, the common name and other kinds of names do not count.
func CertificateNames(cert *x509.Certificate) []string {
	var names []string
	for _, dns := range cert.DNSNames {
		if name, err := policy.ParseName(dns); err == nil && name == dns {
			names = append(names, dns)
		}
	}
	for _, uri := range cert.URIs {
		if id := uri.String(); strings.HasPrefix(id, "spiffe://") {
			names = append(names, id)
		}
	}
	return names
}
