package exchange

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"net/url"
	"testing"

	"github.com/egressd/egressd/internal/testpki"
)

// TestCertificatesAreAsSmallAsTheyAre whatever of them it is that takes the memory.
func TestCertificatesAreAsSmallAsTheyAre(t *testing.T) {
	for says, tt := range map[string]struct {
		n     int
		add   func(c *x509.Certificate, i int)
		small bool
	}{
		"uses":   {15_000, testpki.UnknownUse, false},
		"URIs":   {3_000, func(c *x509.Certificate, _ int) { c.URIs = append(c.URIs, &url.URL{Path: "a"}) }, false},
		"names":  {15_000, func(c *x509.Certificate, _ int) { c.DNSNames = append(c.DNSNames, "a") }, false},
		"titles": {3_000, func(c *x509.Certificate, _ int) { c.Subject.Organization = append(c.Subject.Organization, "a") }, false},
		"extensions": {4_000, func(c *x509.Certificate, i int) {
			c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, i}})
		}, false},
		"a long identifier": {1, func(c *x509.Certificate, _ int) {
			c.UnknownExtKeyUsage = append(c.UnknownExtKeyUsage, append(asn1.ObjectIdentifier{1, 3}, make([]int, 50_000)...))
		}, false},
		"a thousand hosts": {1000, func(c *x509.Certificate, i int) {
			c.DNSNames = append(c.DNSNames, fmt.Sprintf("host-%d.example.com", i))
		}, true},
	} {
		der := testpki.Heavy(t, tt.n, tt.add)
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		err = SmallChain(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}})
		if len(der) > handshakeMost || (err == nil) != tt.small {
			t.Errorf("%s in %d bytes, which weigh %d: %v", says, len(der), weight(der), err)
		}
	}
}
