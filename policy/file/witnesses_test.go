package file

import (
	"testing"
)

// TestWhatWitnessesAndSinksTrustIsExpanded leaves the file itself as it was read.
func TestWhatWitnessesAndSinksTrustIsExpanded(t *testing.T) {
	const path = "${HOME}/ca.pem"
	f, err := Parse("f", []byte(`version: 1
allow: []
audit:
  witnesses: [{url: "https://w.test", key: "w.test+00000000+BA==", ca_file: "`+path+`"}]
  sinks: [{name: s, type: syslog, address: "tls:s.test:6514", ca_file: "`+path+`"}]
`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.Expand(func(string) (string, bool) { return "/home/u", true })
	if err != nil {
		t.Fatal(err)
	}
	if w, s := out.Audit.Witnesses[0].CAFile, out.Audit.Sinks[0].CAFile; w != "/home/u/ca.pem" || s != w {
		t.Errorf("expanded to %q and %q", w, s)
	}
	if w, s := f.Audit.Witnesses[0].CAFile, f.Audit.Sinks[0].CAFile; w != path || s != path {
		t.Errorf("the file itself says %q and %q", w, s)
	}
}
