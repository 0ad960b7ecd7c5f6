package file

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
	"go.yaml.in/yaml/v3"
)

// SandboxRules are one entry of "sandboxes". At least one of TokenFile, Listen,
// Enter, UIDs, Sources and Certificate is given. A connection belongs to the sandbox if
// all given fields except Enter fit, and if no field of another sandbox identifies it.
type SandboxRules struct {
	// Name is the sandbox's name in rules and in the log. The name of a template
	// has "{id}" in it, see [policy.Template].
	Name string

	// User is the proxy user where it is not Name. That of a template has "{id}" in it.
	User string

	// TokenFile holds the proxy password. A relative path is relative to the
	// folder of the configuration.
	TokenFile string

	// Listen is a listener that only this sandbox can reach.
	Listen string

	// Enter is a Unix socket that only this sandbox can reach. A process attaches its
	// own network there and so becomes this sandbox. Of the other fields only UIDs
	// restricts who may attach.
	Enter string

	// UIDs are users one of whom connects, where the listener is a Unix socket.
	UIDs []uint32

	// Sources are prefixes in one of which a client's address lies, where the
	// listener is TCP. Of prefixes that contain each other the longest counts.
	Sources []netip.Prefix

	// Docker are the containers that the sandbox is, where its connections come from
	// addresses of container networks, or containers hand their networks in.
	Docker policy.Containers

	// Certificate is a name in the client certificate, where the listener is
	// TLS: a DNS name or a SPIFFE ID.
	Certificate string

	// Allow, where Narrowed is set, is all that this sandbox may reach out of
	// what the rest of the file allows. It opens nothing by itself.
	Allow []policy.Rule

	// Narrowed is set where the key "allow" is present, even with an empty
	// list, which allows nothing.
	Narrowed bool

	// AlsoAllow opens to this sandbox alone what no line of the file speaks of. A private address needs a line of the
	// list "allow" of the file.
	AlsoAllow []policy.Rule

	// Deny is refused to this sandbox on top of the rest of the file.
	Deny []policy.Rule

	// Rego names files and folders with a policy for this sandbox alone, in the
	// package egress.NAME. It opens nothing by itself.
	Rego []RegoSource

	// Mode observes this sandbox, also what its own list Allow does not mention.
	Mode Enforcement

	// Project is a working tree whose .egressd/project.yaml is a layer of this
	// sandbox, once somebody trusts it. Empty: none.
	Project string
}

func (r *reader) sandboxes(into *[]SandboxRules) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "sandboxes") {
			at := fmt.Sprintf("sandboxes[%d]", i)
			s := SandboxRules{Narrowed: hasKey(item, "allow")}
			r.places[at] = placeOf(item)
			r.mapping(item, at, r.modeFields(fields{
				"name":        r.sandboxName(at+".name", &s.Name),
				"user":        r.sandboxUser(at+".user", &s.User),
				"token_file":  r.path(at+".token_file", &s.TokenFile),
				"listen":      r.listener(at+".listen", &s.Listen),
				"enter":       r.enter(at+".enter", &s.Enter),
				"uid":         r.uids(at+".uid", &s.UIDs),
				"source":      r.sources(at+".source", &s.Sources),
				"docker":      r.containers(at+".docker", &s.Docker),
				"certificate": r.checked(at+".certificate", &s.Certificate, problemOfCertificate),
				"allow":       r.rules(at+".allow", &s.Allow, policy.Allow),
				"deny":        r.rules(at+".deny", &s.Deny, policy.Deny),
				"also_allow":  r.rules(at+".also_allow", &s.AlsoAllow, policy.Allow),
				"rego":        r.plainRego(at+".rego", &s.Rego),
				"project":     r.path(at+".project", &s.Project),
			}, at+".", &s.Mode))
			r.checkSandbox(item, at, s, *into)
			*into = append(*into, s)
		}
	}
}

// toldApart reports whether a sandbox has a key that tells it from the others.
func toldApart(n *yaml.Node) bool {
	return slices.ContainsFunc([]string{"token_file", "listen", "enter", "uid", "source", "docker", "certificate"}, func(key string) bool { return hasKey(n, key) })
}

func (r *reader) checkSandbox(n *yaml.Node, at string, s SandboxRules, before []SandboxRules) {
	if n.Kind != yaml.MappingNode {
		return
	}
	if !hasKey(n, "name") {
		r.fail(n, "%s has no name; add \"name: web\" or the like", at)
	}
	r.checkTemplate(n, at, s)
	for _, rule := range s.AlsoAllow {
		if policy.InSpecialSpace(rule.Pattern) {
			r.failAt(rule.At, "%s: %s is not public; write it under allow of the file, and under allow of each sandbox that may reach it", rule.ID, rule.Pattern)
		}
	}
	if !toldApart(n) {
		r.fail(n, "nothing tells %s from the others; add token_file, listen, enter, uid, source, docker or certificate", at)
	}
	same := func(b SandboxRules) bool { return s.Name != "" && b.Name == s.Name }
	if slices.ContainsFunc(before, same) {
		r.fail(n, "a sandbox %q stands above already; give this one another name", s.Name)
	}
}

// sandboxName reads a name that can stand in a log, a URL and a proxy user, or a template of such names.
func (r *reader) sandboxName(what string, into *string) func(*yaml.Node) {
	return r.sandboxWord(what, into, func(text string) string {
		switch t, ok := policy.ParseTemplate(text); {
		case !policy.IsTemplate(text):
			return ""
		case !ok || !plainName(t.Name("id")):
			return "{id} once, beside letters, digits, dots, dashes and underscores, such as e2b-{id}"
		case t.Name("") == "":
			return "something beside {id}, such as e2b-{id}, so that no sandbox gets the name of another kind"
		case len(t.Name("")) > besideIDMost:
			return fmt.Sprintf("up to %d characters beside {id}, so that ids of 40 characters fit into the 64 of a name", besideIDMost)
		}
		return ""
	})
}

// besideIDMost is the length of a name without the longest id.
const besideIDMost = 24

// sandboxUser reads a proxy user, or a template of such.
func (r *reader) sandboxUser(what string, into *string) func(*yaml.Node) {
	return r.sandboxWord(what, into, func(text string) string {
		if t, ok := policy.ParseTemplate(text); policy.IsTemplate(text) && (!ok || !plainName(t.Name("id"))) {
			return "{id} once, beside letters, digits, dots, dashes and underscores, such as sbx-{id}"
		}
		return ""
	})
}

// sandboxWord reads a plain name or a template. amiss returns what to write instead of a template, or "".
func (r *reader) sandboxWord(what string, into *string, amiss func(string) string) func(*yaml.Node) {
	return r.checked(what, into, func(text string) string {
		instead := amiss(text)
		return unless(instead == "" && (policy.IsTemplate(text) || plainName(text)), text, cmp.Or(instead, plainNames))
	})
}

// checkTemplate refuses a user without a token, and what the sandboxes of a template cannot have.
func (r *reader) checkTemplate(n *yaml.Node, at string, s SandboxRules) {
	template := policy.IsTemplate(s.Name)
	switch {
	case s.User != "" && s.TokenFile == "":
		r.fail(n, "%s.user is the user of a proxy that asks for a password; add token_file, or leave the key out", at)
	case s.User != "" && s.Name != "" && template != policy.IsTemplate(s.User):
		r.fail(n, "%s: {id} stands in only one of name and user; write it in both, or in neither", at)
	case template && s.TokenFile == "":
		r.fail(n, "%s is a template, whose sandboxes are told by the proxy user; add token_file", at)
	}
	for _, key := range []string{"enter", "docker", "project"} {
		if template && hasKey(n, key) {
			r.fail(n, "%s is a template, and %s is of one sandbox alone; leave the key out, or give that sandbox an entry of its own", at, key)
		}
	}
}

// checkUsers refuses two sandboxes that one proxy user or one name could mean.
func (r *reader) checkUsers(f *File) {
	for i := range f.Sandboxes {
		s := &f.Sandboxes[i]
		for j := range i {
			b, at := &f.Sandboxes[j], fmt.Sprintf("sandboxes[%d]", i)
			switch {
			case s.Name == "" || b.Name == "" || s.Name == b.Name: // said already
			case alike(s.Name, b.Name):
				r.failAt(r.places[at], "%s: %s could also be a sandbox of %s; write another word beside {id}, such as x-{id}", at, s.Name, b.Name)
			case s.TokenFile != "" && b.TokenFile != "" && alike(s.ProxyUser(), b.ProxyUser()):
				r.failAt(r.places[at], "%s: the proxy user %s could also mean the sandbox %s, whose user is %s; give one of them another user", at, s.ProxyUser(), b.Name, b.ProxyUser())
			}
		}
	}
}

// ProxyUser returns the user that a client of the sandbox sends with its token.
func (s *SandboxRules) ProxyUser() string { return cmp.Or(s.User, s.Name) }

// alike reports whether two texts, of which each may be a template, could mean the same sandbox.
func alike(a, b string) bool {
	ta, isA := policy.ParseTemplate(a)
	tb, isB := policy.ParseTemplate(b)
	switch {
	case isA && isB:
		return ta.Overlaps(tb)
	case isA:
		_, ok := ta.ID(b)
		return ok
	case isB:
		_, ok := tb.ID(a)
		return ok
	}
	return a == b
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
			if prefix, ok := parse(r, item, fmt.Sprintf("%s[%d]", what, i), parseSource); ok {
				*into = append(*into, prefix)
			}
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

// problemOfCertificate judges a DNS name or a SPIFFE ID, as it stands in certificates.
func problemOfCertificate(text string) string {
	name, err := policy.ParseName(text)
	return unless(err == nil && name == text || spiffeID(text), text, "a DNS name in lower case, or spiffe://DOMAIN/PATH")
}

// spiffeScheme begins the name of a workload in the URI of its certificate.
const spiffeScheme = "spiffe://"

// spiffeID reports whether text is a SPIFFE ID in its only spelling: a trust
// domain in lower case, and segments that are not empty, "." or "..".
func spiffeID(text string) bool {
	rest, ok := strings.CutPrefix(text, spiffeScheme)
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

func notInSegment(c rune) bool { return c > '~' || !policy.Unreserved(byte(c)) || c == '~' }

// checkIdentity refuses sandboxes that no connection can match, and identities that two
// sandboxes share.
func (r *reader) checkIdentity(f *File) {
	r.checkUsers(f)
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
