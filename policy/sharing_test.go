package policy

import (
	"strings"
	"testing"
)

func TestNamesThatLookLikeData(t *testing.T) {
	for name, want := range map[string]bool{
		"registry.npmjs.org":                                        false,
		"productionresultssa12.blob.core.windows.net":               false,
		"internationalization-and-localisation.example.com":         false,
		strings.Repeat("0a", 16) + ".evil.test":                     true,
		strings.Repeat("0a", 30) + ".evil.test":                     true,
		"x." + strings.Repeat("q7", 24) + ".evil.test":              true,
		"d41d8cd98f00b204e9800998ecf8427.of-31-digits.example.test": false,
	} {
		if got := LooksLikeData(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
