package rego

import (
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

// TestAFormatIsBoundedByItsVerbs has what only looks like a width pass.
func TestAFormatIsBoundedByItsVerbs(t *testing.T) {
	for format, fits := range map[string]bool{
		"/repos/%s/**":       true,
		"**/%s":              true,
		"/20261120123456/%d": true,
		"%s/20261120123456":  true,
		"%s %[1]q %5.2f":     true,
		"%9999999s":          false,
		"%.9999999f":         false,
		"%*d":                false,
		"%-*d":               false,
		"%[2]*[1]d":          false,
		"%5%%*d":             false,
		"%(%*d":              false,
		"%1000000s%1000000s%1000000s%1000000s%1000000s": false,
		"%[1]s%[1]s":                        true,
		strings.Repeat("%[1]s", 400):        true,
		strings.Repeat("%[1]1s", maxMade/9): false,
		strings.Repeat("%[1]s", maxMade/9):  false,
		"%s" + strings.Repeat(" ", 1000):    true,
	} {
		operands := []*ast.Term{ast.StringTerm(format), ast.ArrayTerm(ast.StringTerm("x"))}
		if got := printed(operands) <= maxMade; got != fits {
			t.Errorf("%q: fits is %v", format, got)
		}
	}
}

// TestPatternsThatPoliciesHavePass holds that the bounds of patterns are far from what is written.
func TestPatternsThatPoliciesHavePass(t *testing.T) {
	path, host := ast.StringTerm("/"+strings.Repeat("segment/", 1000)), ast.StringTerm(strings.Repeat("label.", 42)+"x")
	header := ast.StringTerm(strings.Repeat("a", 1<<16))
	hosts := ast.StringTerm("^(" + strings.Repeat(`www\.example\.com|`, 3000) + "x)$")
	segment := ast.StringTerm("[a-z0-9_-]{1,64}")
	for says, made := range map[string]int{
		"a list of hosts":     matched([]*ast.Term{hosts, host}),
		"words in a header":   matched([]*ast.Term{ast.StringTerm(`^Bearer [A-Za-z0-9._~+/-]{20,100}=*$`), header}),
		"what is no pattern":  matched([]*ast.Term{ast.StringTerm("("), header}),
		"a path in its parts": searched(ast.StringTerm("/"), path, -1),
		"names in a path":     searched(segment, ast.StringTerm(strings.Repeat("name/", 400)), -1),
	} {
		if made > maxMade {
			t.Errorf("%s: refused", says)
		}
	}
}

// tokenPatterns are twenty-one.
var tokenPatterns = strings.Repeat("gh[pousr]_[A-Za-z0-9]{36,255}|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[baprs]-[0-9A-Za-z-]{20,72}|glpat-[0-9A-Za-z_-]{20}|", 5) + "sk-[A-Za-z0-9]{20,48}"

// TestOrdinarySearchesPass holds that what is looked for in requests may be, in 8 KiB.
func TestOrdinarySearchesPass(t *testing.T) {
	text := ast.StringTerm(strings.Repeat("gh_aA0/+", 1<<10))
	all, one := ast.IntNumberTerm(-1), ast.IntNumberTerm(1)
	for says, made := range map[string]int{
		"tokens":           found([]*ast.Term{ast.StringTerm("gh[pousr]_[A-Za-z0-9]{36,255}"), text, all}),
		"base64":           found([]*ast.Term{ast.StringTerm("[A-Za-z0-9+/]{20,500}"), text, all}),
		"a list of tokens": found([]*ast.Term{ast.StringTerm(tokenPatterns), text, all}),
		"tokens to hide":   replacedRegex([]*ast.Term{text, ast.StringTerm("gh[pousr]_[A-Za-z0-9]{36,255}"), ast.StringTerm("***")}),
		"parts":            found([]*ast.Term{ast.StringTerm("[A-Za-z0-9+/]{20,500}"), text}),
		"one without end":  found([]*ast.Term{ast.StringTerm("x{0,500}y[^z]*|x"), text, one}),
	} {
		if made > maxMade {
			t.Errorf("%s: refused", says)
		}
	}
	for says, made := range map[string]int{
		"each byte, far ahead": found([]*ast.Term{ast.StringTerm("x{0,500}y|x"), text, all}),
		"without an end":       found([]*ast.Term{ast.StringTerm("(x{0,500}y)*z|x"), text, all}),
		"many asked for":       found([]*ast.Term{ast.StringTerm("x{0,500}y|x"), text, ast.IntNumberTerm(8000)}),
		"parts":                found([]*ast.Term{ast.StringTerm("x{0,500}y|x"), text}),
	} {
		if made <= maxMade {
			t.Errorf("%s: let through", says)
		}
	}
}

func TestTheLengthOfAMatch(t *testing.T) {
	for pattern, want := range map[string][2]int{
		"abc":               {3, 3},
		"(a|bcd)e?":         {1, 4},
		"^[a-z]{2,5}.$":     {3, 6},
		"(?:ab+){2}":        {4, maxSearch},
		"(ab){3,}":          {6, maxSearch},
		"(a*|b)?":           {0, maxSearch},
		"":                  {0, 0},
		"(a{1,30}b){20,20}": {40, 620},
	} {
		if m := measured(pattern); m.shortest != want[0] || m.longest != want[1] {
			t.Errorf("%q: %d to %d, want %v", pattern, m.shortest, m.longest, want)
		}
	}
}

func TestGlobMatchIsBoundedByItsWays(t *testing.T) {
	path := "/repos/" + strings.Repeat("segment/", 1000) + "issues"
	a := strings.Repeat("a", 8<<10)
	for _, row := range []struct {
		glob, delimiters, text string
		fits                   bool
	}{
		{"/repos/*/*/issues", "/", path, true},
		{"/repos/*/*/issues", "/", "/repos/" + a, true},
		{"/repos/**/issues/*", "/", path, true},
		{"/{repos,orgs}/*/{issues,pulls}", "/", path, true},
		{"*.example.com", ".", a + ".example.com", true},
		{"*.example.com", "", strings.Repeat("a.", 4<<10) + "example.com", true},
		{"{*.a.com,*.b.com,*.c.com}", ".", strings.Repeat("a.", 100) + "c.com", true},
		{"{" + strings.Repeat("*.example.com,", 1000) + "x}", ".", "www.example.org", true},
		{"**a**b**", "/", a, true},
		{strings.Repeat("*a", 5) + "b", "/", a + "/", false},
		{strings.Repeat("*a", 12) + "*b?", "/", strings.Repeat("a", 60), false},
		{strings.Repeat("{a,a}", 30) + "b?", "", strings.Repeat("a", 31), false},
		{strings.Repeat("{**a,x}", 9) + "b?", "", strings.Repeat("a", 60), false},
		{strings.Repeat("?*", 9) + "b?", "/", strings.Repeat("a", 60), false},
	} {
		delimiters := ast.NullTerm()
		if row.delimiters != "" {
			delimiters = ast.ArrayTerm(ast.StringTerm(row.delimiters))
		}
		if got := globMatched([]*ast.Term{ast.StringTerm(row.glob), delimiters, ast.StringTerm(row.text)}) <= maxMade; got != row.fits {
			t.Errorf("%.40q: fits is %v", row.glob, got)
		}
	}
}
