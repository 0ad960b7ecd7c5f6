package policy

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Fetched reports whether the source is a bundle that is fetched from a server.
func (s *RegoSource) Fetched() bool { return strings.Contains(s.Bundle, "://") }

// checkBundle refuses a bundle that could be replaced on its way, and keys that
// would be passed over.
func (r *reader) checkBundle(n *yaml.Node, at string, s *RegoSource) {
	if strings.Contains(s.Bundle, "${") {
		return // what it is will be known, and looked at, when it is opened
	}
	if !s.Fetched() {
		for _, key := range []string{"ca", "token_file", "refresh", "max_age"} {
			if hasKey(n, key) {
				r.fail(n, "%s is a file, and %s is about bundles that are fetched; leave it out", at, key)
			}
		}
		return
	}
	if err := checkBundleURL(s); err != nil {
		r.fail(n, "%s: %v", at, err)
	}
	if s.Key == "" {
		r.fail(n, "%s is fetched and has no key; write key: FILE with the public key that it is signed with", at)
	}
	if s.Refresh >= s.MaxAge {
		r.fail(n, "%s: with refresh %s it would be older than max_age %s before it is looked for again; make refresh shorter", at, s.Refresh, s.MaxAge)
	}
}

// checkBundleURL does not quote the URL: there may be a secret in it.
func checkBundleURL(s *RegoSource) error {
	u, err := url.Parse(s.Bundle)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		return errors.New("bundle is no URL; write https://host/path, http://host/path or oci://host/repository:tag")
	case u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "oci":
		return fmt.Errorf("bundle cannot be fetched over %.20q; write https://, http:// or oci://", u.Scheme)
	case u.User != nil:
		return errors.New("bundle has a password in its URL; write it into a file, and token_file: FILE")
	case u.Fragment != "":
		return errors.New("bundle has a # in its URL, and what follows is never sent; leave it out")
	case u.Scheme == "http" && s.TokenFile != "":
		return errors.New("token_file would be sent where everybody can read it; fetch the bundle over https")
	case u.Scheme == "http" && s.CA != "":
		return errors.New("ca is about https; leave it out, or fetch the bundle over https")
	}
	return nil
}
