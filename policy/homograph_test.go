package policy

import "testing"

// TestDeceptiveNames takes names that were registered to deceive, or are like them, and honest names beside them.
func TestDeceptiveNames(t *testing.T) {
	for text, want := range map[string]string{
		"xn--80ak6aa92e.com":              "looks like apple.com, and is another name",
		"*.xn--xample-2of.com:443":        "looks like example.com, and is another name",
		"xn--pypal-4ve.com":               "looks like paypal.com, and is another name",
		"xn--gogle-jye.example":           "looks like google.example, and is another name",
		"xn--gthub-n4a.com":               "looks like github.com, and is another name",
		"xn--bcher-kva.example":           "",
		"xn--fiqs8s":                      "",
		"xn--e1afmkfd.xn--p1ai":           "",
		"xn--jxalpdlp.xn--hxajbheg2az3al": "",
		"example.com":                     "",
	} {
		p, err := ParsePattern(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := p.Deceptive(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for name, want := range map[string]string{
		"\u0433ithub.com":                                   `mixes letters of several scripts in "\u0433ithub"`,
		"\u0430\u0440\u0440\u04cf\u0435.com":                "looks like apple.com, and is another name",
		"g\u03bfogle.com":                                   "looks like google.com, and is another name",
		"\u043f\u0440\u0438\u043c\u0435\u0440.\u0440\u0444": "",
		"\u65e5\u672cabc.example":                           "",
	} {
		if got := lookalike(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
