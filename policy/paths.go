package policy

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A PathPattern is the parsed form of a line in "paths:". A segment "**"
// stands for any number of whole segments, none included, so that "/a/**"
// covers "/a", "/a/" and "/a/b/c". Inside any other segment "*" stands for any
// run of bytes without "/". Everything else is compared byte for byte, and
// upper case is not lower case, unless the pattern is [PathPattern.Folded].
type PathPattern struct {
	text     string
	segments []string // as foldSegment has them where folds
	folds    bool
}

const anySegments = "**"

func ParsePathPattern(text string) (PathPattern, error) {
	if !strings.HasPrefix(text, "/") {
		return PathPattern{}, fmt.Errorf("path %q does not begin with /; write %q", text, "/"+text)
	}
	segments := strings.Split(text[1:], "/")
	for _, segment := range segments {
		if segment != anySegments && strings.Contains(segment, anySegments) {
			return PathPattern{}, fmt.Errorf("path %q has ** inside a segment; write it between slashes, or write *", text)
		}
	}
	if strings.ContainsAny(text, "?#") {
		return PathPattern{}, fmt.Errorf("path %q has a query or a fragment; write the path alone", text)
	}
	if err := canonicalPath(text); err != nil {
		return PathPattern{}, fmt.Errorf("path %q %w, so no request can match it; write it as it is sent after cleaning", text, err)
	}
	return PathPattern{text: text, segments: segments}, nil
}

// String returns the pattern as it was read.
func (p PathPattern) String() string { return p.text }

// Folded returns p for a server that takes upper case for lower case.
func (p PathPattern) Folded() PathPattern {
	folded := PathPattern{text: p.text, folds: true, segments: make([]string, len(p.segments))}
	for i, segment := range p.segments {
		folded.segments[i] = foldSegment(segment)
	}
	return folded
}

// Match reports whether the canonical path lies under p. Match backtracks to the last "**"
// only, so it takes at most len(p) × len(path) steps.
func (p PathPattern) Match(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	if p.folds {
		path = foldSegment(path)
	}
	rest, more := path[1:], true // rest is what is left; more is false after the last segment
	segment, retry := 0, -1
	var retryRest string
	for more {
		if segment < len(p.segments) && p.segments[segment] == anySegments {
			segment++
			retry, retryRest = segment, rest
			continue
		}
		head, tail, another := strings.Cut(rest, "/")
		switch {
		case segment < len(p.segments) && matchSegment(p.segments[segment], head):
			segment++
			rest, more = tail, another
		case retry >= 0:
			segment = retry
			_, rest, more = strings.Cut(retryRest, "/")
			retryRest = rest
		default:
			return false
		}
	}
	for segment < len(p.segments) && p.segments[segment] == anySegments {
		segment++
	}
	return segment == len(p.segments)
}

// matchSegment compares one segment, in which "*" stands for any run of bytes.
func matchSegment(pattern, segment string) bool {
	at, star, resume := 0, -1, 0
	for i := 0; i < len(segment); {
		switch {
		case at < len(pattern) && pattern[at] == '*':
			star, resume = at, i
			at++
		case at < len(pattern) && pattern[at] == segment[i]:
			at++
			i++
		case star >= 0:
			resume++
			at, i = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(pattern[at:], "*") == ""
}

// foldSegment returns one text for all texts that differ only in the case of letters, also of escaped ones. Cases are those
// of [strings.EqualFold], so that the Kelvin sign is a K.
func foldSegment(segment string) string {
	if strings.IndexByte(segment, '%') < 0 {
		return strings.ToUpper(segment) // a canonical path is ASCII
	}
	var folded strings.Builder
	for _, symbol := range symbolsOf(segment) {
		folded.WriteString(foldSymbol(symbol))
	}
	return folded.String()
}

// foldSymbol folds one of [symbolsOf].
func foldSymbol(symbol string) string {
	if symbol[0] != '%' {
		return strings.ToUpper(symbol)
	}
	raw, err := url.PathUnescape(symbol)
	letter, size := utf8.DecodeRuneInString(raw)
	if err != nil || letter < utf8.RuneSelf || size != len(raw) || letter == utf8.RuneError {
		return symbol
	}
	least := letter
	for other := unicode.SimpleFold(letter); other != letter; other = unicode.SimpleFold(other) {
		least = min(least, other)
	}
	if least < utf8.RuneSelf {
		return strings.ToUpper(string(least))
	}
	return escapeAll(string(least))
}

// casesOf returns all symbols that fold to what symbol folds to.
func casesOf(symbol string) []string {
	raw, err := url.PathUnescape(symbol)
	letter, size := utf8.DecodeRuneInString(raw)
	if err != nil || size != len(raw) {
		return []string{symbol}
	}
	all := []string{symbol}
	for other := unicode.SimpleFold(letter); other != letter; other = unicode.SimpleFold(other) {
		if other < utf8.RuneSelf {
			all = append(all, string(other))
		} else {
			all = append(all, escapeAll(string(other)))
		}
	}
	return all
}

func escapeAll(text string) string {
	var escaped strings.Builder
	for i := range len(text) {
		fmt.Fprintf(&escaped, "%%%02X", text[i])
	}
	return escaped.String()
}

var (
	errNotRooted    = errors.New("does not begin with /")
	errEmptySegment = errors.New("has an empty segment")
	errDotSegment   = errors.New("has a dot segment")
	errPathByte     = errors.New("has a byte that servers read in different ways")
	errPathEscape   = errors.New("has a percent escape that servers read in different ways")
	errPathLong     = errors.New("is longer than 4 KiB")
	errPathText     = errors.New("has escapes that are not UTF-8, or stand for a letter that looks like a dot or a slash")
)

// pathMost bounds the time in which hundreds of rules look at one path, in bytes. Many servers refuse
// longer ones.
const pathMost = 4 << 10

// canonicalPath returns an error where two servers could read path in two
// ways: empty and dot segments, path parameters, backslashes, control and
// non-ASCII bytes, and escapes that are malformed, in lower case, or stand for
// a byte that needs none or that changes how the path is read (RFC 3986
// section 6.2.2), or for what some decoders make a dot or a slash of. It also returns an error for a
// path that is too long. Such a path never matches an allow, and always a deny.
func canonicalPath(path string) error {
	switch {
	case path == "" || path[0] != '/':
		return errNotRooted
	case len(path) > pathMost:
		return errPathLong
	}
	start := 1
	for i := 1; i <= len(path); i++ {
		if i == len(path) || path[i] == '/' {
			if err := canonicalSegment(path[start:i], i == len(path)); err != nil {
				return err
			}
			start = i + 1
		}
	}
	return nil
}

func canonicalSegment(segment string, last bool) error {
	switch {
	case segment == "" && !last:
		return errEmptySegment
	case segment == "." || segment == "..":
		return errDotSegment
	}
	escaped := false
	for i := 0; i < len(segment); i++ {
		switch c := segment[i]; {
		case c <= ' ' || c >= 0x7f || strings.IndexByte(`\;?#`, c) >= 0:
			return errPathByte
		case c == '%':
			if !plainEscape(segment[i:]) {
				return errPathEscape
			}
			escaped = true
			i += 2
		}
	}
	if escaped {
		return canonicalText(segment)
	}
	return nil
}

// lookalikes are letters that a normalisation or a best fit takes for a dot, a
// slash or a backslash.
const lookalikes = "\u2024\u2025\u2026\uff0e\u2044\u2215\u29f8\uff0f\uff3c\u2216\ufe68"

// canonicalText judges what a segment, whose escapes are plain, stands for.
func canonicalText(segment string) error {
	text := make([]byte, 0, len(segment))
	for i := 0; i < len(segment); i++ {
		c := segment[i]
		if c == '%' {
			c = byte(strings.IndexByte(upperHex, segment[i+1])<<4 | strings.IndexByte(upperHex, segment[i+2]))
			i += 2
		}
		text = append(text, c)
	}
	switch decoded := string(text); {
	case !utf8.ValidString(decoded), strings.ContainsAny(decoded, lookalikes):
		return errPathText
	case strings.Trim(decoded, ". ") == "": // a file system that drops spaces at the end has a dot segment
		return errDotSegment
	}
	return nil
}

// plainEscape reports whether text begins with an escape, in upper case, of a
// byte that has to be escaped and that no server gives a meaning.
func plainEscape(text string) bool {
	if len(text) < 3 {
		return false
	}
	high, low := strings.IndexByte(upperHex, text[1]), strings.IndexByte(upperHex, text[2])
	if high < 0 || low < 0 {
		return false
	}
	c := byte(high<<4 | low)
	return c >= ' ' && c != 0x7f && !Unreserved(c) && strings.IndexByte(`/\;%`, c) < 0
}

const upperHex = "0123456789ABCDEF"

// Unreserved is RFC 3986 section 2.3.
func Unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// PathMatches reports whether path lies under pattern, which is one line of
// "paths:". A path that servers could read in two ways lies under none. The
// error says what is wrong with the pattern.
func PathMatches(path, pattern string) (bool, error) {
	p, err := ParsePathPattern(pattern)
	if err != nil {
		return false, err
	}
	return canonicalPath(path) == nil && p.Match(path), nil
}

// CanonicalMethod reports whether every server reads method in the same way. Methods are
// case-sensitive (RFC 9110 section 9.1), and some servers take "post" for POST.
func CanonicalMethod(method string) bool { return strings.ToUpper(method) == method }

// CanonicalPath reports whether every server reads path in the same way.
func CanonicalPath(path string) bool { return canonicalPath(path) == nil }
