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
		"a list of hosts":          matched([]*ast.Term{hosts, host}),
		"words in a header":        matched([]*ast.Term{ast.StringTerm(`^Bearer [A-Za-z0-9._~+/-]{20,100}=*$`), header}),
		"what is no pattern":       matched([]*ast.Term{ast.StringTerm("("), header}),
		"a path in its parts":      searched(ast.StringTerm("/"), path),
		"names in a path":          searched(segment, ast.StringTerm(strings.Repeat("name/", 400))),
		"a template":               templated([]*ast.Term{ast.StringTerm("/repos/{[^/]{1,100}}/{.*}"), path, ast.StringTerm("{"), ast.StringTerm("}")}),
		"a template without signs": templated([]*ast.Term{path, path, ast.StringTerm(""), ast.StringTerm("")}),
		"globs":                    globbed([]*ast.Term{ast.StringTerm("/[a-zA-Z0-9]+/.*"), path}),
	} {
		if made > maxMade {
			t.Errorf("%s: refused", says)
		}
	}
}
