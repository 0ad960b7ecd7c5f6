package file

import "testing"

// TestLinesThatAreSeldomMeantAreWarnedOf: misspelt methods.
func TestLinesThatAreSeldomMeantAreWarnedOf(t *testing.T) {
	for lines, want := range map[string]int{
		"allow: [{host: a.test, methods: [GET, POST, PROPFIND, BREW]}]":                       0,
		"allow: [{host: a.test, methods: [GTE, PSOT]}]":                                       2,
		"allow: [b.test]\ndeny: [{host: a.test, methods: [DELTE]}]":                           1,
		"allow: [xn--80ak6aa92e.com]\ndeny: ['*.xn--xample-2of.com', xn--bcher-kva.test]":     2,
		"allow: [a.test]\ndeny: ['a.test:8443', '*.a.test', {host: a.test, methods: [POST]}]": 0,
	} {
		f, err := Parse("f", []byte("version: 1\n"+lines+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		if said := f.Warnings(); len(said) != want {
			t.Errorf("%s: %q", lines, said)
		}
	}
}
