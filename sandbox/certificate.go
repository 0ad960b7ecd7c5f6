package sandbox

import (
	"crypto/x509"
	"strings"

	"github.com/egressd/egressd/policy"
)

// CertificateNames returns the names that a verified client certificate gives
// its holder: DNS names that are canonical, and SPIFFE IDs (its URIs of that
// scheme). Other kinds of names, wildcards and the common name are none.
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
