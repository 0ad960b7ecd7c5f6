package http1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFields(t *testing.T) {
	f := Fields{{"A", "1"}, {"b", "x, Y ,z"}, {"a", "2"}}
	if f.Get("a") != "1" || f.Get("c") != "" || !f.Has("B") || f.Has("c") {
		t.Error("Get and Has")
	}
	if diff := cmp.Diff([]string{"1", "2"}, f.Values("A")); diff != "" {
		t.Error(diff)
	}
	for token, want := range map[string]bool{"x": true, "y": true, "Z": true, "x, Y": false, "": false, "w": false} {
		if f.HasToken("B", token) != want {
			t.Errorf("HasToken(%q) = %t", token, !want)
		}
	}
	if diff := cmp.Diff(Fields{{"b", "x, Y ,z"}, {"A", "3"}}, f.Set("A", "3")); diff != "" {
		t.Error(diff)
	}
}

func TestFieldNamesFoldASCIIOnly(t *testing.T) {
	if (Fields{{"\u212A", "1"}}).Has("k") || equalFold("[", "{") || equalFold("@", "`") {
		t.Error("other characters than letters fold")
	}
}

func TestValidField(t *testing.T) {
	for _, row := range []struct {
		field Field
		want  bool
	}{
		{Field{"X-A", "b c\td\xff"}, true},
		{Field{"X", ""}, true},
		{Field{"", "x"}, false},
		{Field{"X:", "x"}, false},
		{Field{"X ", "x"}, false},
		{Field{"X", "a\r\nB: c"}, false},
		{Field{"X", "a\x00"}, false},
		{Field{"X", " a"}, false},
		{Field{"X", "a\t"}, false},
	} {
		if row.field.Valid() != row.want {
			t.Errorf("%q: %t", row.field, !row.want)
		}
	}
}

func TestTokenBytes(t *testing.T) {
	const tokens = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	n := 0
	for c := range 256 {
		if isTokenByte(byte(c)) {
			n++
		}
	}
	if n != len(tokens) || !isToken(tokens) {
		t.Errorf("%d characters are tokens, not these %d", n, len(tokens))
	}
}

func TestStripHopByHop(t *testing.T) {
	fields := Fields{
		{"Host", "a.test"}, {"Connection", "X-A, close,,keep-alive"}, {"x-a", "1"}, {"Keep-Alive", "1"}, {"TE", "trailers"},
		{"Trailer", "X"}, {"Upgrade", "foo"}, {"Proxy-Connection", "keep-alive, X-B"}, {"X-B", "1"}, {"Proxy-Authenticate", "x"},
		{"proxy-authorization", "Basic dG9r"}, {"Transfer-Encoding", "chunked"}, {"HTTP2-Settings", "AA"}, {"Accept", "*/*"},
	}
	got, err := StripHopByHop(fields)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Fields{{"Host", "a.test"}, {"Accept", "*/*"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestStripHopByHopRefusesNominations(t *testing.T) {
	for _, value := range []string{"Host", "close, content-length", "Transfer-Encoding", "x y", "close;x"} {
		if got, err := StripHopByHop(Fields{{"Connection", value}, {"Host", "a.test"}}); !isMalformed(err, 400) {
			t.Errorf("%q: %v, %v", value, got, err)
		}
	}
}

func TestStripClaims(t *testing.T) {
	got, replaces := StripClaims(Fields{
		{"X-Original-URL", "/admin"}, {"X_HTTP_Method_Override", "DELETE"}, {"x-host", "evil.test"}, {"X_Forwarded_For", "1"}, {"X-HTTP-Method-Override", "DELETE"}, {"x-method-override", "PUT"}, {"X-Http-Method", "PATCH"},
		{"X-Forwarded-For", "1"}, {"x-forwarded-anything", "1"}, {"Forwarded", "for=1"}, {"Via", "1.1 me"}, {"X-Real-IP", "1"},
		{"True-Client-IP", "1"}, {"X-Forward", "kept"}, {"User-Agent", "x"},
	})
	if diff := cmp.Diff(Fields{{"X-Forward", "kept"}, {"User-Agent", "x"}}, got); diff != "" || !replaces {
		t.Error(replaces, diff)
	}
	if _, replaces = StripClaims(Fields{{"Via", "1.1 me"}, {"X-Methods", "DELETE"}}); replaces {
		t.Error("the method is said to be replaced")
	}
}
