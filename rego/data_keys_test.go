package rego

import (
	"testing"
)

func TestFirstRepeatedKey(t *testing.T) {
	for text, want := range map[string]struct {
		key  string
		line int
	}{
		"a: 1\nb: 2\n":                   {},
		"a: 1\nb: 2\na: 3\n":             {"a", 3},
		"a: 1\n\"a\": 3\n":               {"a", 2},
		"x:\n  - a: 1\n    a: 2\n":       {"a", 3},
		"x: {a: 1, b: {c: 1, c: 2}}\n":   {"c", 1},
		"x: {a: 1}\ny: {a: 1}\n":         {},
		"x: &s {a: 1}\ny: *s\n":          {},
		"text: |\n  a: 1\n  a: 2\n":      {},
		"? [a, b]\n: 1\n? [a, b]\n: 2\n": {}, // no key of JSON, so it is refused elsewhere
	} {
		key, line, err := firstRepeatedKey([]byte(text))
		if err != nil || key != want.key || line != want.line {
			t.Errorf("%q: %q in line %d, %v", text, key, line, err)
		}
	}
	if _, _, err := firstRepeatedKey([]byte("a: [")); err == nil {
		t.Error("what is no YAML passes")
	}
}
