package secret

import "strings"

const (
	alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	tokenBytes   = alphanumeric + "!#$%&'*+-.^_`|~" // RFC 9110, section 5.6.2
)

func isToken(s string) bool {
	return s != "" && strings.Trim(s, tokenBytes) == ""
}

// isFraming reports whether the field says where a message ends, where it goes
// or what becomes of the connection.
func isFraming(name string) bool {
	for _, n := range []string{
		"Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Proxy-Connection",
		"TE", "Trailer", "Transfer-Encoding", "Upgrade",
	} {
		if equalFold(name, n) {
			return true
		}
	}
	return false
}

// isPrintable reports whether s is printable ASCII without spaces around it.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return strings.Trim(s, " ") == s
}

// isText reports whether s holds no control character but tabs.
func isText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// equalFold compares ASCII: strings.EqualFold would take U+212A for a k.
func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

// lowerText changes ASCII alone, as equalFold does.
func lowerText(s string) string {
	b := []byte(s)
	for i, c := range b {
		b[i] = lower(c)
	}
	return string(b)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + ('a' - 'A')
	}
	return c
}
