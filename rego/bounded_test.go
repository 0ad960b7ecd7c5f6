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
