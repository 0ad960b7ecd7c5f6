package policy

import (
	"regexp"
	"strings"
	"testing"
)

func TestPathPatterns(t *testing.T) {
	rows := []struct {
		pattern, path string
		want          bool
	}{
		{"/", "/", true},
		{"/", "/a", false},
		{"/a", "/a", true},
		{"/a", "/a/", false},
		{"/a", "/A", false},
		{"/a", "/ab", false},
		{"/a/**", "/a", true},
		{"/a/**", "/a/", true},
		{"/a/**", "/a/b/c", true},
		{"/a/**", "/ab", false},
		{"/**", "/", true},
		{"/**", "/a/b", true},
		{"/**/z", "/z", true},
		{"/**/z", "/a/b/z", true},
		{"/**/z", "/a/z/b", false},
		{"/a/**/b/**/c", "/a/x/b/y/b/z/c", true},
		{"/a/**/b/**/c", "/a/x/y/c", false},
		{"/a/**/**", "/a", true},
		{"/a/*", "/a/b", true},
		{"/a/*", "/a/b/c", false},
		{"/a/*/c", "/a/b/c", true},
		{"/a/*/c", "/a/c", false},
		{"/a/x*y*z", "/a/x1y2z", true},
		{"/a/x*y*z", "/a/xyyz", true},
		{"/a/x*y*z", "/a/xz", false},
		{"/a/*.git", "/a/b.git.git", true},
		{"/a%20b", "/a%20b", true},
		{"/a", "", false},
		{"/a", "*", false},
	}
	for _, row := range rows {
		p, err := ParsePathPattern(row.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(row.path); got != row.want {
			t.Errorf("%s matches %q: %t", row.pattern, row.path, got)
		}
	}
}

func TestPathPatternsThatFold(t *testing.T) {
	for _, row := range []struct {
		pattern, path string
		want          bool
	}{
		{"/repos/acme/**", "/repos/ACME/secret", true},
		{"/Repos/*X", "/rEPOS/ax", true},
		{"/repos/acme", "/repos/acmf", false},
		{"/k", "/%E2%84%AA", true}, // the Kelvin sign
		{"/%E2%84%AA", "/K", true},
		{"/%C3%A9", "/%C3%89", true},
		{"/%C3%A9", "/%C3%A8", false},
		{"/a%20b", "/A%20B", true},
		{"/a", "/%", false},
		{"/a", "/%C", false},
		{"/a", "/%C3%ZZ", false},
	} {
		p, err := ParsePathPattern(row.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Folded().Match(row.path); got != row.want {
			t.Errorf("%s matches %q: %t", row.pattern, row.path, got)
		}
	}
}

func TestALongPathMatchesNoAllow(t *testing.T) {
	for _, row := range []struct {
		bytes       int
		allow, deny bool
	}{{4096, true, false}, {4097, false, true}, {60_000, false, true}} {
		path := "/a/" + strings.Repeat("b", row.bytes-len("/a/"))
		anywhere, other := conditions{paths: []PathPattern{{text: "/**", segments: []string{"**"}}}, ofAllow: true}, conditions{paths: []PathPattern{{text: "/c", segments: []string{"c"}}}}
		if anywhere.holdsPath(path) != row.allow || other.holdsPath(path) != row.deny {
			t.Errorf("%d bytes: allow %t, deny %t", row.bytes, anywhere.holdsPath(path), other.holdsPath(path))
		}
	}
}

func TestPathPatternsThatAreRefused(t *testing.T) {
	for _, pattern := range []string{"", "a", "**", "/a**", "/**b", "/a//b", "/a/../b", "/a?b", "/a#b", "/a;b", "/a b", `/a\b`, "/ä", "/%2f", "/%61", "/%"} {
		if _, err := ParsePathPattern(pattern); err == nil {
			t.Errorf("%q was accepted", pattern)
		}
	}
}

func TestPathsThatServersReadInTwoWays(t *testing.T) {
	for _, path := range []string{
		"", "*", "a", "//", "//a", "/a//b", "/.", "/..", "/a/./b", "/a/../b", "/a/..",
		"/%2e%2e/a", "/a/%2E", "/a%2fb", "/a%2Fb", "/a%5Cb", "/a%5cb", `/a\b`, "/a;b", "/a/..;/b", "/a%3Bb",
		"/a%00", "/a%0A", "/a%7F", "/a\x00", "/a\n", "/a b", "/a\x7f", "/\xc3\xa4", "/%c3%a4",
		"/%61", "/%252e", "/%", "/%2", "/%zz", "/a?b", "/a#b",
		"/%C0%AE%C0%AE/a", "/%C0%AF", "/a/%FF", "/..%20/a", "/%20", "/.%20.", "/%EF%BC%8E%EF%BC%8E/a", "/a%E2%88%95b",
	} {
		if canonicalPath(path) == nil {
			t.Errorf("%q passes for canonical", path)
		}
	}
	for _, path := range []string{"/", "/a/", "/a/b", "/.well-known/x", "/a...b", "/%C3%A4", "/a%20b", "/a.%20", "/...", "/%E2%82%AC", "/a:b@c!$&'()*+,=~_-", `/a"<>[]^|{}`} {
		if err := canonicalPath(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// FuzzPathMatch compares the matcher with a regular expression made from the
// same pattern.
func FuzzPathMatch(f *testing.F) {
	f.Add("/a/**/b", "/a/x/y/b")
	f.Add("/a/*b*c/**", "/a/xbyc/")
	f.Add("/**/a/**/**/b", "/a/a/b")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		p, err := ParsePathPattern(pattern)
		if err != nil || canonicalPath(path) != nil || len(pattern) > 200 || len(path) > 200 {
			return
		}
		if got, want := p.Match(path), pathExpression(t, p).MatchString(path); got != want {
			t.Errorf("%q matches %q: %t, the expression says %t", pattern, path, got, want)
		}
	})
}

func pathExpression(t *testing.T, p PathPattern) *regexp.Regexp {
	var out strings.Builder
	for _, segment := range p.segments {
		if segment == "**" {
			out.WriteString("(/[^/]*)*")
			continue
		}
		out.WriteString("/" + strings.ReplaceAll(regexp.QuoteMeta(segment), `\*`, "[^/]*"))
	}
	expression, err := regexp.Compile(`\A` + out.String() + `\z`)
	if err != nil {
		t.Fatal(err)
	}
	return expression
}
