package policy

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// TLSListener begins the text of a listener on which clients speak TLS first,
// UnixListener that of a socket, and TProxyListener that of one for connections
// that tproxy has taken.
const (
	TLSListener    = "tls:"
	UnixListener   = "unix:"
	TProxyListener = "tproxy:"
)

// SPIFFEScheme begins the name of a workload in the URI of its certificate.
const SPIFFEScheme = "spiffe://"

// toldApart reports whether a sandbox has a key that tells it from the others.
func toldApart(n *yaml.Node) bool {
	return slices.ContainsFunc([]string{"token_file", "listen", "enter", "uid", "source", "docker", "certificate"}, func(key string) bool { return hasKey(n, key) })
}

// uids reads a list of users that is not empty.
func (r *reader) uids(what string, into *[]uint32) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.places[what] = placeOf(n)
		for i, item := range r.someItems(n, what) {
			const most = 1<<32 - 2 // 2^32-1 is no user
			var uid int64
			number(r, fmt.Sprintf("%s[%d]", what, i), &uid, 0, most)(item)
			*into = append(*into, uint32(uid))
		}
	}
}

// sources reads a list of prefixes that is not empty. An address is a prefix
// of full length.
func (r *reader) sources(what string, into *[]netip.Prefix) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.places[what] = placeOf(n)
		for i, item := range r.someItems(n, what) {
			one := fmt.Sprintf("%s[%d]", what, i)
			text, ok := r.text(item, one)
			if !ok {
				continue
			}
			prefix, err := parseSource(text)
			if err != nil {
				r.fail(item, "%s: %v", one, err)
				continue
			}
			*into = append(*into, prefix)
		}
	}
}

func parseSource(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		text = fmt.Sprintf("%s/%d", text, addr.BitLen())
	}
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is not an address prefix; write one like 172.18.0.0/16", printable(text))
	case prefix.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%s is an IPv4 prefix in IPv6 clothes; write it as IPv4", prefix)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("%s has host bits; write %s", prefix, prefix.Masked())
	case prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast():
		return netip.Prefix{}, fmt.Errorf("%s is link-local, and another host on each link; give the sandbox an address of another kind", prefix)
	}
	return prefix, nil
}

// someItems returns the items of a list that must have some: an empty list
// would read as if the key were not there.
func (r *reader) someItems(n *yaml.Node, what string) []*yaml.Node {
	items := r.items(n, what)
	if n.Kind == yaml.SequenceNode && len(items) == 0 {
		r.fail(n, "%s is empty, so nobody could be the sandbox; name one, or leave the key out", what)
	}
	return items
}

// certificate reads a DNS name or a SPIFFE ID, as it stands in certificates.
func (r *reader) certificate(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		name, err := ParseName(text)
		if (err != nil || name != text) && !spiffeID(text) {
			r.fail(n, "%s cannot be %q; write a DNS name in lower case, or spiffe://DOMAIN/PATH", what, printable(text))
			return
		}
		*into = text
		r.places[what] = placeOf(n)
	}
}

// spiffeID reports whether text is a SPIFFE ID in its only spelling: a trust
// domain in lower case, and segments that are not empty, "." or "..".
func spiffeID(text string) bool {
	rest, ok := strings.CutPrefix(text, SPIFFEScheme)
	u, err := url.Parse(text)
	if !ok || err != nil || u.String() != text || len(text) > 2048 {
		return false
	}
	domain, path, _ := strings.Cut(rest, "/")
	if domain == "" || len(domain) > 255 || strings.Trim(domain, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" {
		return false
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." || strings.ContainsFunc(segment, notInSegment) {
			return false
		}
	}
	return true
}

func notInSegment(c rune) bool { return c > '~' || !unreserved(byte(c)) || c == '~' }

// serverName reads a name that a certificate of a listener is made for.
func (r *reader) serverName(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		name, err := ParseName(text)
		if err != nil {
			r.fail(n, "%s: %v", what, err)
			return
		}
		*into = name
	}
}

// checkIdentity refuses sandboxes that nobody could be, and what is said to
// tell two of them apart and does not.
func (r *reader) checkIdentity(f *File) {
	first := make(map[any]string) // by uid, prefix or name
	once := func(at string, i int, value any) {
		name := f.Sandboxes[i].Name
		if before, twice := first[value]; twice {
			r.failAt(r.places[at], "%s: %v is said of the sandbox %q already; say it once", at, value, before)
		}
		first[value] = name
	}
	for i := range f.Sandboxes {
		s, at := &f.Sandboxes[i], fmt.Sprintf("sandboxes[%d]", i)
		for _, uid := range s.UIDs {
			once(at+".uid", i, uid)
		}
		for _, prefix := range s.Sources {
			once(at+".source", i, prefix)
		}
		if s.Docker.Given() {
			once(at+".docker", i, s.Docker.String())
		}
		if s.Certificate != "" {
			once(at+".certificate", i, s.Certificate)
		}
		r.checkReach(f, s, at)
	}
	if f.Listen.ClientCA != "" && !slices.ContainsFunc(f.listeners(), isTLS) {
		r.failAt(r.places["listen.client_ca"], "listen.client_ca is asked for by TLS listeners, and there is none; write one as \"tls:127.0.0.1:3443\", or leave the key out")
	}
}

// listeners are all that proxy clients come by.
func (f *File) listeners() []string {
	all := slices.Clone(f.Listen.Proxy)
	for i := range f.Sandboxes {
		all = append(all, f.Sandboxes[i].Listen)
	}
	return all
}

func isTLS(listener string) bool  { return strings.HasPrefix(listener, TLSListener) }
func isUnix(listener string) bool { return strings.HasPrefix(listener, UnixListener) }
func isTCP(listener string) bool  { return listener != "" && !isUnix(listener) }

// checkReach refuses a key that no connection of any listener the sandbox can
// come by could fit.
func (r *reader) checkReach(f *File, s *SandboxRules, at string) {
	by := f.Listen.Proxy
	if s.Listen != "" {
		by = []string{s.Listen}
	}
	switch {
	case len(s.UIDs) > 0 && (len(s.Sources) > 0 || s.Certificate != ""):
		r.failAt(r.places[at+".uid"], "%s has a uid, which only unix sockets know, and a source or a certificate, which they do not; no connection is all of it: leave one out", at)
	case len(s.UIDs) > 0 && s.Enter == "" && len(f.Listen.Enter) == 0 && !slices.ContainsFunc(by, isUnix):
		r.failAt(r.places[at+".uid"], "%s.uid needs a unix socket, and the sandbox has none to come by; add one to listen.proxy, or listen: \"unix:/path\"", at)
	case s.Certificate != "" && !slices.ContainsFunc(by, isTLS):
		r.failAt(r.places[at+".certificate"], "%s.certificate needs a TLS listener, and the sandbox has none to come by; add \"tls:127.0.0.1:3443\" to listen.proxy", at)
	case s.Certificate != "" && f.Listen.ClientCA == "":
		r.failAt(r.places[at+".certificate"], "%s.certificate needs authorities of client certificates; name their file under listen.client_ca", at)
	case len(s.Sources) > 0 && !slices.ContainsFunc(by, isTCP) && (s.Listen != "" || len(f.Listen.Transparent) == 0):
		r.failAt(r.places[at+".source"], "%s.source needs a TCP listener, and the sandbox has none to come by; add one to listen.proxy or listen.transparent", at)
	}
}
