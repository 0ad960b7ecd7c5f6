package file

import (
	"testing"

	"github.com/egressd/egressd/policy"
)

// TestARuleIsTakenOutAndNothingElse has rules in the layouts of lists.
func TestARuleIsTakenOutAndNothingElse(t *testing.T) {
	for before, want := range map[string]string{
		"version: 1\nallow:\n  - a.test # said\n  - b.test\n":              "version: 1\nallow:\n  - b.test\n",
		"version: 1\nallow:\n  - b.test\n  # above\n  - a.test\n":          "version: 1\nallow:\n  - b.test\n  # above\n",
		"version: 1\nallow:\n  - a.test\ndeny: [b.test]\n":                 "version: 1\nallow: []\ndeny: [b.test]\n",
		"version: 1\nallow: [a.test, b.test]\n":                            "version: 1\nallow: [b.test]\n",
		"version: 1\nallow: [b.test, a.test] # both\n":                     "version: 1\nallow: [b.test] # both\n",
		"version: 1\nallow: [a.test]\n":                                    "version: 1\nallow: []\n",
		"version: 1\nallow:\n  - {host: a.test}\n  - {host: b.test}\n":     "version: 1\nallow:\n  - {host: b.test}\n",
		"version: 1\nallow:\n  - host: a.test\n    tls: any\n  - b.test\n": "version: 1\nallow:\n  - b.test\n",
	} {
		f, err := Parse("f", []byte(before))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range f.Allow {
			if r.Pattern.Host() != "a.test" {
				continue
			}
			if got, ok := RemoveText("f", []byte(before), r.At); !ok || string(got) != want {
				t.Errorf("%q became %q, %t", before, got, ok)
			}
		}
	}
	if _, ok := RemoveText("f", []byte("version: 1\nallow: [a.test]\n"), policy.Position{Line: 2, Column: 1}); ok {
		t.Error("what is no rule was taken out")
	}
}
