package policy

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestNamesOfMCPMatchAsAnExpressionDoes compares the matcher with expressions of package regexp.
func TestNamesOfMCPMatchAsAnExpressionDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab./*]{0,8}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[ab./]{0,10}`).Draw(t, "name")
		text := strings.NewReplacer(`\*\*`, `.*`, `\*`, `[^/.]*`).Replace(regexp.QuoteMeta(pattern))
		want := regexp.MustCompile(`^(?:` + text + `)$`).MatchString(name)
		if got := matchMCP(pattern, name); got != want {
			t.Fatalf("%q, %q: %v, want %v", pattern, name, got, want)
		}
	})
}

// TestALongNameOfMCPCostsLittle: with several stars, a matcher that tries all ways would not end.
func TestALongNameOfMCPCostsLittle(t *testing.T) {
	for _, n := range []int{mcpNameMost, 30 << 20} {
		if matchMCP("a*a*a*a*a*b", strings.Repeat("a", n)) {
			t.Error("it matches")
		}
	}
}
