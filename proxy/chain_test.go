package proxy

import (
	"crypto/tls"
	"testing"
)

// behind is a good certificate for allowed.test with another one in its chain.
func (p *pki) behind(t *testing.T, other []byte) tls.Certificate {
	leaf := p.leaf(t, nil, "allowed.test")
	leaf.Certificate = append(leaf.Certificate, other)
	return leaf
}
