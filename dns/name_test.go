package dns

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func TestCanonical(t *testing.T) {
	label := strings.Repeat("a", 63)
	longest := strings.Join([]string{label, label, label, label[:61]}, ".")
	for name, want := range map[string]bool{
		"a.test":        true,
		"localhost":     true,
		"_sip.a-b.test": true,
		"1.2.3.4.test":  true,
		"xn--bcher-kva": true,
		"a.0x":          false,
		"a.1":           false,
		"0x7f000001":    false,
		"a.test.":       false,
		".test":         false,
		"a..test":       false,
		"A.test":        false,
		"a.tEst":        false,
		"é.test":        false,
		"a\n.test":      false,
		`\097.test`:     false,
		"a:b.test":      false,
		"":              false,
		label + ".test": true,
		longest:         true,

		label + "a.test": false,
		longest + "a":    false,
	} {
		if got := canonical(name); got != want {
			t.Errorf("canonical(%q) = %v, want %v", name, got, want)
		}
		if parsed, err := policy.ParseName(name); err == nil && parsed == name && !want {
			t.Errorf("policy hands out %q, which cannot be looked up", name)
		}
	}
}

func TestMixedCaseFlipsLettersOnly(t *testing.T) {
	bits := []byte{0xff, 0xff}
	if got, want := mixCase("a-9_z.test", bits), "A-9_Z.TEST"; got != want {
		t.Errorf("mixCase = %q, want %q", got, want)
	}
}

func TestSameFoldedKnowsLettersOnly(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want bool
	}{
		{"abc", "aBC", true},
		{"abc", "abd", false},
		{"abc", "abcd", false},
		{"a-c", "a\rc", false}, // these differ in the bit of the case
		{"a@c", "a`c", false},
		{"a{c", "a[c", false},
		{"\x01", "!", false},
	} {
		if got := sameFolded([]byte(row.a), []byte(row.b)); got != row.want {
			t.Errorf("sameFolded(%q, %q) = %v", row.a, row.b, got)
		}
	}
}
