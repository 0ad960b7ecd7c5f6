package daemon

import (
	"crypto/x509"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/sandbox/oidc"
)

// openIssuers makes the issuers whose tokens prove sandboxes. It reads the keys that are files. Servers of keys have
// certificates of the same authorities as upstreams.
func openIssuers(c *config.Config, with *inspect.Inspection) (*oidc.Issuers, error) {
	var roots *x509.CertPool
	if with != nil {
		roots = with.Roots
	}
	issuers, err := oidc.Open(c.Issuers(), roots)
	if err != nil {
		return nil, hint.Misused(err, "correct oidc.keys under sandboxes in "+c.Path)
	}
	return issuers, nil
}
