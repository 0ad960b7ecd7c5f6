package file

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// An OIDC is the mapping "oidc" of a sandbox: which tokens of an OpenID Connect issuer prove it. They come with the
// requests at "listen.forwarded".
type OIDC struct {
	// Issuer is the claim "iss", a URL of https. Tokens are compared with it; nothing is fetched from it.
	Issuer string

	// Keys is where the issuer's public keys are, as a JSON Web Key Set (RFC 7517): a URL of https, or the path of a
	// file. A relative path is relative to the folder of the configuration.
	Keys string

	// Audience is one of the values of the claim "aud".
	Audience string

	// Claims are claims whose values must be these. At least one is given: an issuer may sign for others, too.
	Claims map[string]string

	// ID is the claim that holds the id of a template's sandbox. Only a template has it.
	ID string
}

// Fetched reports whether the keys come from a URL.
func (o *OIDC) Fetched() bool { return isHTTPS(o.Keys) }

func isHTTPS(text string) bool { return strings.HasPrefix(text, "https://") }

func (r *reader) oidc(what string, into **OIDC) func(*yaml.Node) {
	return func(n *yaml.Node) {
		o := new(OIDC)
		r.mapping(n, what, fields{
			"issuer":   r.checked(what+".issuer", &o.Issuer, problemOfIssuer),
			"keys":     r.keys(what+".keys", &o.Keys),
			"audience": r.checked(what+".audience", &o.Audience, problemOfClaim),
			"claims":   r.claims(what+".claims", &o.Claims),
			"id":       r.checked(what+".id", &o.ID, problemOfClaim),
		})
		if n.Kind == yaml.MappingNode {
			for _, row := range []struct{ key, add string }{
				{"issuer", "the claim iss of its tokens, such as \"issuer: https://oidc.vercel.com/TEAM\""},
				{"keys", "the URL or the file of its public keys, such as \"keys: https://oidc.vercel.com/TEAM/.well-known/jwks\""},
				{"audience", "the claim aud of its tokens, such as \"audience: https://egress.example.com\""},
				{"claims", "a claim that other customers of the issuer do not get, such as \"claims: {team_id: team_7f3a}\""},
			} {
				if !hasKey(n, row.key) {
					r.fail(n, "%s has no %s; add %s", what, row.key, row.add)
				}
			}
		}
		r.places[what] = placeOf(n)
		*into = o
	}
}

// keys reads a URL of https, or a path.
func (r *reader) keys(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		if strings.Contains(text, "://") {
			if wrong := problemOfURL(text); wrong != "" {
				r.fail(n, "%s %s", what, wrong)
				return
			}
		}
		r.path(what, into)(n)
	}
}

// claims reads a mapping of names to texts that is not empty.
func (r *reader) claims(what string, into *map[string]string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		known, values := fields{}, map[string]*string{}
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			if wrong := problemOfClaim(name); wrong != "" {
				r.fail(n.Content[i], "a key of %s %s", what, wrong)
				return
			}
			values[name] = new(string)
			known[name] = r.checked(what+"."+name, values[name], problemOfClaim)
		}
		r.mapping(n, what, known)
		if n.Kind == yaml.MappingNode && len(values) == 0 {
			r.fail(n, "%s is empty, so that tokens of every customer of the issuer would count; write {team_id: team_7f3a} or the like", what)
		}
		*into = map[string]string{}
		for name, value := range values {
			(*into)[name] = *value
		}
	}
}

func problemOfIssuer(text string) string {
	if u, err := url.Parse(text); err == nil && u.RawQuery != "" {
		return "has a query, which no issuer has (OpenID Connect Core, section 2); leave it out"
	}
	return problemOfURL(text)
}

// problemOfURL does not quote the URL: there may be a secret in it.
func problemOfURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || !printableASCII(text) || len(text) > claimMost:
		return "is no URL of https; write one like https://oidc.vercel.com/TEAM"
	case u.User != nil:
		return "has a password in its URL; leave it out"
	case strings.Contains(text, "#"):
		return "has a # in its URL, and what follows is never sent; leave it out"
	}
	return ""
}

// claimMost bounds the text of a claim.
const claimMost = 512

func problemOfClaim(text string) string {
	if len(text) > claimMost || !printableASCII(text) {
		return fmt.Sprintf("is not up to %d printable ASCII characters", claimMost)
	}
	return ""
}

// checkOIDC refuses keys that a sandbox with an issuer cannot have.
func (r *reader) checkOIDC(n *yaml.Node, at string, s SandboxRules) {
	template := policy.IsTemplate(s.Name)
	for _, key := range []string{"user", "token_file", "listen", "enter", "uid", "docker", "certificate", "project"} {
		if s.OIDC != nil && hasKey(n, key) {
			r.fail(n, "%s has oidc, and its requests come by listen.forwarded without %s; leave one of the two out", at, key)
		}
	}
	switch {
	case s.OIDC == nil:
	case template && s.OIDC.ID == "":
		r.fail(n, "%s is a template, whose sandboxes are told by a claim; add the name of that claim, such as id: sandbox_id, to oidc", at)
	case !template && s.OIDC.ID != "":
		r.fail(n, "%s.oidc.id is the id of a template's sandboxes; write {id} into the name, or leave the key out", at)
	}
}

// checkIssued refuses tokens of which no request could have one, and tokens that two sandboxes could have.
func (r *reader) checkIssued(f *File) {
	some := false
	for i := range f.Sandboxes {
		s, at := &f.Sandboxes[i], fmt.Sprintf("sandboxes[%d].oidc", i)
		if s.OIDC == nil {
			continue
		}
		some = true
		if len(f.Listen.Forwarded) == 0 {
			r.failAt(r.places[at], "%s needs a listener whose requests have tokens; add one, such as listen: {forwarded: [\"127.0.0.1:3180\"]}", at)
		}
		for j := range i {
			if b := &f.Sandboxes[j]; b.OIDC != nil && s.OIDC.overlaps(b.OIDC) {
				r.failAt(r.places[at], "%s: a token could be of the sandbox %q, too; give the two another audience, or different values of one claim", at, b.Name)
			}
		}
	}
	if len(f.Listen.Forwarded) > 0 && !some {
		r.failAt(r.places["listen.forwarded[0]"], "listen.forwarded takes requests with tokens, and no sandbox has an issuer of such; add oidc to a sandbox, or leave the key out")
	}
}

// overlaps reports whether one token could be of both.
func (o *OIDC) overlaps(b *OIDC) bool {
	differ := func(name string) bool { return b.Claims[name] != "" && b.Claims[name] != o.Claims[name] }
	return o.Issuer == b.Issuer && o.Audience == b.Audience && !slices.ContainsFunc(slices.Collect(maps.Keys(o.Claims)), differ)
}
