package sandbox

import "slices"

// Claims are what a verified token says about who asks. They are never changed.
type Claims struct {
	Issuer   string
	Audience []string
	Values   map[string]string // of the claims that are text
}

// An Issued says which tokens prove a sandbox: those of the issuer, for the audience, with all of the claims. It is
// never changed.
type Issued struct {
	Issuer   string
	Audience string
	Claims   map[string]string
	ID       string // the claim with the id of a template's sandbox; empty if the sandbox is none of a template
}

// proves reports whether a token with the claims c proves a sandbox of i. Both may be nil, which proves nothing.
func (i *Issued) proves(c *Claims) bool {
	if i == nil || c == nil || c.Issuer != i.Issuer || !slices.Contains(c.Audience, i.Audience) {
		return false
	}
	for name, value := range i.Claims {
		if said, ok := c.Values[name]; !ok || said != value {
			return false
		}
	}
	return true
}
