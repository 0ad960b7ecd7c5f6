package http1

import "strings"

// A PathError says why a path has another spelling that a server may take it
// for, so that rules about paths cannot be applied to it.
type PathError struct{ Problem string }

func (e *PathError) Error() string { return "http1: path is not canonical: " + e.Problem }

// CanonicalPath returns nil if path, without query, is spelled in the one way
// that all servers understand alike, and a *PathError otherwise. It reports
// empty and dot segments in any spelling, semicolons, backslashes, escapes of
// slashes, backslashes, semicolons, control characters and characters that
// need none, escapes of an escape, and hexadecimal digits in lower case.
// "*" is canonical.
func CanonicalPath(path string) error {
	if path == "*" {
		return nil
	}
	if !strings.HasPrefix(path, "/") {
		return &PathError{"it does not begin with a slash"}
	}
	if problem := oddBytes(path); problem != "" {
		return &PathError{problem}
	}
	if problem := oddSegments(path[1:]); problem != "" {
		return &PathError{problem}
	}
	return nil
}

func oddBytes(path string) string {
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c <= ' ' || c >= 0x7f:
			return "a character that has to be escaped"
		case c == '\\':
			return "a backslash"
		case c == ';':
			return "a semicolon"
		case c == '?' || c == '#':
			return "a query or fragment"
		case c == '%':
			if problem := oddEscape(path[i:]); problem != "" {
				return problem
			}
			i += 2
		}
	}
	return ""
}

// oddEscape judges the escape that s begins with.
func oddEscape(s string) string {
	if len(s) < 3 || !isHex(s[1]) || !isHex(s[2]) {
		return "a bad percent-escape"
	}
	if 'a' <= s[1] && s[1] <= 'f' || 'a' <= s[2] && s[2] <= 'f' {
		return "a percent-escape in lower case"
	}
	switch c := unhex(s[1])<<4 | unhex(s[2]); {
	case c < ' ' || c == 0x7f:
		return "an escaped control character"
	case c == '/' || c == '\\' || c == ';':
		return "an escaped separator"
	case isUnreserved(c):
		return "an escape of a character that needs none"
	case c == '%' && len(s) >= 5 && isHex(s[3]) && isHex(s[4]):
		return "an escaped percent-escape"
	}
	return ""
}

func oddSegments(path string) string {
	for path != "" {
		segment, rest, more := strings.Cut(path, "/")
		switch {
		case segment == "":
			return "an empty segment"
		case segment == "." || segment == "..":
			return "a dot segment"
		case !more:
			return ""
		}
		path = rest
	}
	return ""
}

func unhex(c byte) byte {
	if isDigit(c) {
		return c - '0'
	}
	return lower(c) - 'a' + 10
}

// isUnreserved reports whether c means the same escaped and not (RFC 3986,
// section 2.3).
func isUnreserved(c byte) bool {
	l := lower(c)
	return 'a' <= l && l <= 'z' || isDigit(c) || c == '-' || c == '.' || c == '_' || c == '~'
}
