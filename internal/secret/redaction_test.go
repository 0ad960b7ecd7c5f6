package secret

import (
	"strings"
	"testing"
)

// TestRedactionOfSeveral: secrets that lie in one another, or overlap, are struck as a whole.
func TestRedactionOfSeveral(t *testing.T) {
	short, long, next := mustNew(t, Options{Text: []byte("pass-w0rd")}), mustNew(t, Options{Text: []byte("me:pass-w0rd:end")}), mustNew(t, Options{Text: []byte(":end-of-all")})
	all := Redact(short, long, next)
	const in = "me:pass-w0rd:end-of-all pass-w0rd me:pass-w0r"
	want := strings.Repeat("*", 23) + " " + strings.Repeat("*", 9) + " me:pass-w0r"
	if got, _ := all.RedactString(in); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r := all.NewRedactor()
	var out []byte
	for _, c := range []byte(in) {
		out = append(out, r.Redact([]byte{c})...)
	}
	if out = append(out, r.Flush()...); string(out) != want {
		t.Errorf("byte by byte %q, want %q", out, want)
	}
	if !all.InName("X-PASS-W0RD") || all.InName("X-Other") {
		t.Error("names are not looked at as the secrets are")
	}
}

// TestRedactionWithAnother strikes what it did before and the other one.
func TestRedactionWithAnother(t *testing.T) {
	one, two := mustNew(t, Options{Text: []byte("first-secret")}), mustNew(t, Options{Text: []byte("other-secret")})
	if Redact() != nil || Redact(one) != one.Redaction {
		t.Error("none or one is not what it was")
	}
	if both := Redact(one, two); both.With(one) != both || both.With(two) != both {
		t.Error("what is in it was added again")
	}
	var none *Redaction
	for _, n := range []*Redaction{none.With(one).With(two), Redact(one).With(two)} {
		if got, _ := n.RedactString("first-secret other-secret"); got != "************ ************" {
			t.Errorf("%q", got)
		}
	}
}
