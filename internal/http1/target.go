package http1

import (
	"encoding/base64"
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"
)

// A Form is one of the four shapes of a request target (RFC 9112, section 3.2).
type Form uint8

const (
	Origin    Form = iota + 1 // a path and maybe a query
	Absolute                  // a whole URI of scheme http
	Authority                 // host:port, with CONNECT and no other method
	Asterisk                  // "*", with OPTIONS and no other method
)

// A Target is a request target taken apart and otherwise unchanged.
type Target struct {
	Form      Form
	Authority string // host[:port] as sent, in absolute and authority form; not canonical
	Path      string // ASCII; begins with "/" but not with "//", or is "*"; empty in authority form
	Query     string // ASCII, without "?"
	HasQuery  bool   // there was a "?", even with nothing behind it

	// Basic is the value of the Authorization field that says what the URI's userinfo says ("user:password@"), or "".
	Basic string
}

// RequestURI returns the target in the form in which an origin server is asked
// for it: the path and query that were judged.
func (t Target) RequestURI() string {
	if !t.HasQuery {
		return t.Path
	}
	return t.Path + "?" + t.Query
}

// A SchemeError refuses a URI whose scheme is not http. Scheme is chosen by the
// client: ASCII letters, digits, "+", "-" and ".", in lower case, of any length.
type SchemeError struct{ Scheme string }

func (e *SchemeError) Error() string { return "http1: a URI of another scheme than http" }

// ParseTarget takes a request target apart. Errors are *MalformedError, or
// *SchemeError for a URI of another scheme than http with a slash behind it. The authority is left as
// it is, after a check that it is a host with at most one port, without
// percent signs and characters that no host needs. Userinfo of a URI is taken out of it. In the path and query, bytes of
// UTF-8 that are not ASCII are percent-encoded, as browsers do it.
func ParseTarget(method, target string) (Target, error) {
	switch {
	case target == "" || !isText(target) || strings.ContainsAny(target, " \t"):
		return Target{}, malformed("a request target that is empty or has a blank or a control character")
	case method == "CONNECT":
		return parseAuthorityForm(target)
	case target == "*":
		if method != "OPTIONS" {
			return Target{}, malformed("a request target * without OPTIONS")
		}
		return Target{Form: Asterisk, Path: "*"}, nil
	case target[0] == '/':
		return Target{Form: Origin}.withPath(target)
	default:
		return parseAbsoluteForm(target)
	}
}

func parseAuthorityForm(target string) (Target, error) {
	if err := checkAuthority(target); err != nil {
		return Target{}, err
	}
	if !hasPort(target) {
		return Target{}, malformedHost("a CONNECT target without a port")
	}
	return Target{Form: Authority, Authority: target}, nil
}

func parseAbsoluteForm(target string) (Target, error) {
	scheme, rest, ok := strings.Cut(target, ":")
	served := equalFold(scheme, "http")
	switch {
	case !ok || !isScheme(scheme) || !served && !strings.HasPrefix(rest, "/"):
		return Target{}, malformed("a request target that is neither a path nor a URI")
	case !served:
		return Target{}, &SchemeError{strings.ToLower(scheme)}
	case !strings.HasPrefix(rest, "//"):
		return Target{}, malformedHost("a URI without a host")
	}
	rest = rest[len("//"):]
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	t := Target{Form: Absolute, Authority: rest[:end]}
	if at := strings.LastIndexByte(t.Authority, '@'); at >= 0 {
		var err error
		if t.Basic, err = basicOf(t.Authority[:at]); err != nil {
			return Target{}, err
		}
		t.Authority = t.Authority[at+1:]
	}
	if err := checkAuthority(t.Authority); err != nil {
		return Target{}, err
	}
	return t.withPath(rest[end:])
}

// basicOf returns the credentials of RFC 7617 that userinfo stands for (RFC 3986 section 3.2.1).
func basicOf(userinfo string) (string, error) {
	user, password, _ := strings.Cut(userinfo, ":")
	name, bad := url.PathUnescape(user)
	word, wrong := url.PathUnescape(password)
	if bad != nil || wrong != nil || !isText(name+word) || strings.Contains(name, ":") || !isUserinfo(userinfo) {
		return "", malformedHost("a user name or password in the URL that is not percent-encoded as it has to be")
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+word)), nil
}

func isUserinfo(s string) bool {
	for i := range len(s) {
		if c := s[i]; !isHostByte(c) && !strings.ContainsRune("~!$&'()*+,;=%:", rune(c)) {
			return false
		}
	}
	return s != ""
}

// withPath fills in path and query from s. A path that begins with "//" is
// refused: sent on in origin form it could be read as a host.
func (t Target) withPath(s string) (Target, error) {
	if strings.IndexByte(s, '#') >= 0 {
		return Target{}, malformed("a fragment in the request target")
	}
	if !isVisible(s) && s != "" {
		if !utf8.ValidString(s) {
			return Target{}, malformed("a path or query with bytes that are neither ASCII nor UTF-8")
		}
		s = encoded(s)
	}
	t.Path, t.Query, t.HasQuery = strings.Cut(s, "?")
	if t.Path == "" {
		t.Path = "/"
	}
	switch {
	case strings.HasPrefix(t.Path, "//"):
		return Target{}, malformed("a path that begins with two slashes")
	case !validEscapes(t.Path):
		return Target{}, malformed("a bad percent-escape in the path")
	}
	return t, nil
}

// encoded returns s with its bytes above 0x7f percent-encoded.
func encoded(s string) string {
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, 3*len(s))
	for i := range len(s) {
		if c := s[i]; c > 0x7f {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func validEscapes(s string) bool {
	for i := strings.IndexByte(s, '%'); i >= 0; {
		if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
			return false
		}
		s = s[i+3:]
		i = strings.IndexByte(s, '%')
	}
	return true
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := lower(s[i])
		letter := 'a' <= c && c <= 'z'
		if !letter && (i == 0 || !isDigit(c) && c != '+' && c != '-' && c != '.') {
			return false
		}
	}
	return s != ""
}

const notASCII = "a host with characters that are not printable ASCII; international names are written with xn--"

// checkAuthority reports what is wrong with s as host[:port]: the shape and
// the characters only. Whether the host is one is for others to say.
func checkAuthority(s string) error {
	switch {
	case strings.IndexByte(s, '@') >= 0:
		return malformedHost("a user name before the host")
	case s != "" && !isVisible(s):
		return malformedHost(notASCII)
	}
	host, port, err := cutPort(s)
	if err != nil {
		return err
	}
	if port != "" && !isDigits(port[1:]) {
		return malformedHost("a port that is not a number")
	}
	if host == "" {
		return malformedHost("an empty host")
	}
	if host[0] == '[' {
		return checkBracketed(host[1 : len(host)-1])
	}
	for i := range len(host) {
		if !isHostByte(host[i]) {
			return malformedHost("a character that no host has")
		}
	}
	return nil
}

func checkBracketed(s string) error {
	addr, err := netip.ParseAddr(s)
	if err != nil || !addr.Is6() || addr.Zone() != "" {
		return malformedHost("brackets around something other than an IPv6 address")
	}
	return nil
}

// cutPort splits before the colon that begins the port.
func cutPort(s string) (host, port string, err error) {
	i := strings.IndexByte(s, ':')
	if strings.HasPrefix(s, "[") {
		i = strings.IndexByte(s, ']') + 1
		if i == 0 || i < len(s) && s[i] != ':' {
			return "", "", malformedHost("brackets that do not enclose the host")
		}
	}
	if i < 0 {
		return s, "", nil
	}
	return s[:i], s[i:], nil
}

func hasPort(s string) bool {
	_, port, err := cutPort(s)
	return err == nil && port != ""
}

// isHostByte allows names and IPv4 addresses. Of what else RFC 3986 allows
// nothing is in use, and all of it in attacks.
func isHostByte(c byte) bool {
	l := lower(c)
	return 'a' <= l && l <= 'z' || isDigit(c) || c == '-' || c == '.' || c == '_'
}

func isHex(c byte) bool {
	l := lower(c)
	return isDigit(c) || 'a' <= l && l <= 'f'
}
