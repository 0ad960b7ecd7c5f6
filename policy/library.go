package policy

import (
	"strings"

	"golang.org/x/net/publicsuffix"
)

// PathMatches reports whether path lies under pattern, which is one line of
// "paths:". A path that servers could read in two ways lies under none. The
// error says what is wrong with the pattern.
func PathMatches(path, pattern string) (bool, error) {
	p, err := parsePathPattern(pattern)
	if err != nil {
		return false, err
	}
	return canonicalPath(path) == nil && p.match(path), nil
}

// CanonicalPath reports whether every server reads path in the same way.
func CanonicalPath(path string) bool { return canonicalPath(path) == nil }

// CanonicalMethod reports whether every server reads method in the same way. Methods are
// case-sensitive (RFC 9110 section 9.1), and some servers take "post" for POST.
func CanonicalMethod(method string) bool { return strings.ToUpper(method) == method }

// Registrable returns the part of a canonical name that was registered: the
// public suffix and one label. It is "" for a public suffix and for a name of one
// label.
func Registrable(name string) string {
	registrable, err := publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil {
		return ""
	}
	return registrable
}

// HandedOut reports whether what was registered of a canonical name was handed out by a company to
// whoever asked, as NAME.workers.dev is, and not by a registry: the private part of the
// public suffix list.
func HandedOut(name string) bool {
	suffix, icann := publicsuffix.PublicSuffix(name)
	return !icann && suffix != name && strings.Contains(suffix, ".")
}
