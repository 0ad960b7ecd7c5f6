package http1

import (
	"slices"
	"strings"
)

// A Field is one field line. The value has no whitespace around it.
type Field struct{ Name, Value string }

// Valid reports whether the field may be written: its name is a token and its
// value holds nothing but visible characters, spaces, tabs and bytes above
// 0x7f (obs-text, which is passed on as it is), and begins and ends in none of
// the whitespace. Check fields that do not come from a parser with it.
func (f Field) Valid() bool {
	return isToken(f.Name) && isText(f.Value) && trim(f.Value) == f.Value
}

// Fields are the field lines of a message in their order. Names compare
// without regard to case.
type Fields []Field

// Get returns the value of the first field of that name, or "".
func (f Fields) Get(name string) string {
	for i := range f {
		if equalFold(f[i].Name, name) {
			return f[i].Value
		}
	}
	return ""
}

// Values returns the values of all fields of that name, one for each line:
// lists stay unsplit.
func (f Fields) Values(name string) []string {
	var values []string
	for i := range f {
		if equalFold(f[i].Name, name) {
			values = append(values, f[i].Value)
		}
	}
	return values
}

// Has reports whether there is a field of that name.
func (f Fields) Has(name string) bool { return f.count(name) > 0 }

func (f Fields) count(name string) (n int) {
	for i := range f {
		if equalFold(f[i].Name, name) {
			n++
		}
	}
	return n
}

// Delete returns f without the fields of the given names. It reuses f.
func (f Fields) Delete(names ...string) Fields {
	return slices.DeleteFunc(f, func(field Field) bool { return isOneOf(field.Name, names) })
}

// Set returns f with exactly one field of that name, at the end. It reuses f.
func (f Fields) Set(name, value string) Fields {
	return append(f.Delete(name), Field{name, value})
}

// HasToken reports whether token is an element of the comma-separated list
// that the fields of that name make up, without regard to case.
func (f Fields) HasToken(name, token string) bool {
	for i := range f {
		if !equalFold(f[i].Name, name) {
			continue
		}
		for element := range strings.SplitSeq(f[i].Value, ",") {
			if equalFold(trim(element), token) {
				return true
			}
		}
	}
	return false
}

func isOneOf(name string, names []string) bool {
	for _, n := range names {
		if equalFold(name, n) {
			return true
		}
	}
	return false
}

// equalFold compares ASCII: strings.EqualFold would take U+212A for a k.
func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if a[i] != b[i] && lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + ('a' - 'A')
	}
	return c
}

// trim removes optional whitespace, which is spaces and tabs and no other
// (RFC 9110, section 5.6.3).
func trim(s string) string {
	for len(s) > 0 && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for len(s) > 0 && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		if !isTokenByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func isTokenByte(c byte) bool {
	const low, high = 0x03ff6cfa00000000, 0x57ffffffc7fffffe
	if c < 64 {
		return low>>c&1 != 0
	}
	return uint64(high)>>(c-64)&1 != 0 // 0 for all that is not ASCII
}

// isText reports whether s consists of VCHAR, SP, HTAB and obs-text.
func isText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// isVisible reports whether s is not empty and consists of VCHAR.
func isVisible(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return s != ""
}

func parseField(line string) (Field, error) {
	colon := strings.IndexByte(line, ':')
	if colon < 0 {
		return Field{}, malformed("a field line without a colon")
	}
	f := Field{Name: line[:colon], Value: trim(line[colon+1:])}
	switch {
	case !isToken(f.Name): // whitespace before the colon and obs-fold end here
		return Field{}, malformed("a field name that is not a token")
	case !isText(f.Value):
		return Field{}, malformed("a control character in a field value")
	}
	return f, nil
}

// StripHopByHop returns f without the fields that concern one connection only
// (RFC 9110, section 7.6.1) and those that Connection nominates. It is for requests. It reuses f.
//
// A Connection that nominates Host or a field of framing is a *MalformedError:
// were it obeyed, the next hop would see another message than was judged.
func StripHopByHop(f Fields) (Fields, error) {
	nominated, err := nominations(f)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(f, func(field Field) bool {
		return isHopByHop(field.Name) || isOneOf(field.Name, nominated)
	}), nil
}

// StripResponseHops does for a response what [StripHopByHop] does for a request. Nominations that a response must not
// have are ignored: its framing was read before.
func StripResponseHops(f Fields) Fields {
	var nominated []string
	for i := range f {
		if !equalFold(f[i].Name, "Connection") {
			continue
		}
		for name := range strings.SplitSeq(f[i].Value, ",") {
			if name = trim(name); name != "" && !isEndToEnd(name) {
				nominated = append(nominated, name)
			}
		}
	}
	return slices.DeleteFunc(f, func(field Field) bool {
		return isHopByHop(field.Name) || isOneOf(field.Name, nominated)
	})
}

func nominations(f Fields) (names []string, err error) {
	for i := range f {
		if !equalFold(f[i].Name, "Connection") && !equalFold(f[i].Name, "Proxy-Connection") {
			continue
		}
		for name := range strings.SplitSeq(f[i].Value, ",") {
			name = trim(name)
			if name == "" {
				continue
			}
			if !isToken(name) || isEndToEnd(name) {
				return nil, malformed("a Connection that nominates what it must not")
			}
			names = append(names, name)
		}
	}
	return names, nil
}

func isEndToEnd(name string) bool {
	return isOneOf(name, []string{"Host", "Content-Length", "Transfer-Encoding", "Trailer", "Content-Type", "Content-Encoding"})
}

func isHopByHop(name string) bool {
	return isOneOf(name, []string{
		"Connection", "Proxy-Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade",
		"Proxy-Authenticate", "Proxy-Authorization", "Proxy-Authentication-Info", "HTTP2-Settings",
	})
}

// StripClaims removes the fields of a request that claim who or where its client is, and those by which some
// servers replace the method, path or host that was decided. An underscore counts as a hyphen, because servers
// that pass fields in their environment confuse the two. It reuses f. replaces: one of them asked for another method.
func StripClaims(f Fields) (kept Fields, replaces bool) {
	kept = slices.DeleteFunc(f, func(field Field) bool {
		name := strings.ReplaceAll(field.Name, "_", "-")
		if isOneOf(name, methodFields) {
			replaces = true
			return true
		}
		return hasPrefixFold(name, "X-Forwarded-") || isOneOf(name, []string{
			"Forwarded", "Via", "X-Real-IP", "X-Client-IP", "True-Client-IP", "X-Cluster-Client-IP", "X-Originating-IP",
			"X-Remote-IP", "X-Remote-Addr", "CF-Connecting-IP", "Client-IP", "Fastly-Client-IP", "X-ProxyUser-IP",
			"X-Original-URL", "X-Rewrite-URL", "X-Original-Host", "X-Host",
		})
	})
	return kept, replaces
}

// methodFields ask some servers to take another method for that of the request.
var methodFields = []string{"X-HTTP-Method", "X-HTTP-Method-Override", "X-Method-Override", "X-Method"}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && equalFold(s[:len(prefix)], prefix)
}
