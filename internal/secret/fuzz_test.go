package secret

import (
	"encoding/base64"
	"strings"
	"testing"
)

// FuzzRedactor: whatever the secret, the stream and its pieces are, the output is
// the input with marks over every form of the secret and over nothing else, and
// no byte is late without need.
func FuzzRedactor(f *testing.F) {
	f.Add("abcdefgh", []byte("xabcdefghy"), uint64(0x0505))
	f.Add("abcabcab", []byte("abcabcabcabcab"), uint64(1))
	f.Add("klmnopqr", []byte("6b6c6d6e6f707172 a2xtbm9wcXI= %6B%6C%6D%6E%6F%70%71%72"), uint64(0x1234567))
	f.Add(awkward, []byte(strings.Join(encodings(awkward), "\n")), uint64(0xffff0001))
	f.Add("AAAAAAAA", []byte(base64.StdEncoding.EncodeToString([]byte("u:AAAAAAAAA"))), uint64(3))
	f.Add("+/v7/39/abcdEFGHIA==", []byte("-_v7_39_abcdEFGHIA=="), uint64(0x222))
	f.Add("bWU6cGFzcy13MHJk", []byte("bWU6cGFzcy13MHJk me:pass-w0rd me%3Apass-w0rd"), uint64(0x333))
	f.Fuzz(func(t *testing.T, text string, body []byte, pieces uint64) {
		s, err := New(Options{Header: "A", Text: []byte(text)})
		if err != nil || len(text) > 40 || len(body) > 256 {
			return // the plain way is slow
		}
		checkRedactor(t, s, body, cutsOf(pieces, len(body)))
	})
}

// cutsOf takes the lengths of the first pieces from the digits of n, base 16.
func cutsOf(n uint64, length int) (cuts []int) {
	at := 0
	for ; n != 0; n >>= 4 {
		if at += int(n & 15); at > length {
			break
		}
		cuts = append(cuts, at)
	}
	return cuts
}

// FuzzInject: exactly one field of the name comes out, it holds the text, little
// else and no control character, and all else is as it was.
func FuzzInject(f *testing.F) {
	f.Add("Authorization", "Bearer evil", "authorization", "x", placeholder)
	f.Add("authorization", "token "+placeholder, "X", placeholder, placeholder)
	f.Add("Authorization", basic("user:"+placeholder), "Cookie", "a=b", placeholder)
	f.Add("Authorization", placeholder+"\r\nX-Evil: 1", "X\x00", "\n", placeholder)
	f.Add("Authorization", basic("four\r\nfour"), "AUTHORIZATION", "four", "four")
	f.Add("X", "Basic Zm91cg", "Y", "", "Zm91")
	f.Add("Authorization", "Key k="+placeholder, "", "", placeholder)
	f.Add("Authorization", basic(strings.Repeat("u", 65)+":"+placeholder), "", "", placeholder)
	f.Fuzz(func(t *testing.T, name, value, otherName, otherValue, mark string) {
		s, err := New(Options{Header: "Authorization", Value: "Bearer {}", Placeholder: mark, Text: []byte(token)})
		if err != nil {
			return
		}
		sent := []Field{{name, value}, {otherName, otherValue}, {"Accept", "*/*"}}
		checkInject(t, s, sent, s.Inject(sent))
	})
}

func checkInject(t *testing.T, s *Secret, sent, got []Field) {
	t.Helper()
	own, rest := split(got)
	if len(own) != 1 || own[0].Name != "Authorization" {
		t.Fatalf("%q became %q", sent, got)
	}
	theirs, others := split(sent)
	if len(rest) != len(others) {
		t.Fatalf("%q became %q", sent, got)
	}
	for i := range rest {
		if rest[i] != others[i] {
			t.Fatalf("%q became %q", others[i], rest[i])
		}
	}
	checkValue(t, s, theirs, own[0].Value)
}

func checkValue(t *testing.T, s *Secret, theirs []Field, value string) {
	t.Helper()
	plain := value
	if scheme, encoded, ok := strings.Cut(value, " "); ok && strings.EqualFold(scheme, "basic") {
		if decoded, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			plain += "\n" + string(decoded)
		}
	}
	switch {
	case strings.ContainsAny(value, "\r\n\x00") || strings.TrimSpace(value) != value:
		t.Fatalf("%q is no field value", value)
	case !strings.Contains(plain, token):
		t.Fatalf("%q does not hold the text", plain)
	case len(plain)-len(value) > len("\n"+":"+token)+maxUser, len(plain) == len(value) && len(value) > len(" "+token)+maxScheme:
		t.Fatalf("%q holds more beside the text", plain)
	case len(theirs) != 1 && value != "Bearer "+token:
		t.Fatalf("%d fields became %q", len(theirs), value)
	case strings.Contains(value, "evil") && !strings.Contains(theirs[0].Value, s.placeholder):
		t.Fatalf("%q stayed", value)
	}
}

// split returns the fields that are named like the secret's, and the others.
func split(fields []Field) (own, rest []Field) {
	for _, f := range fields {
		if len(f.Name) == len("Authorization") && strings.EqualFold(f.Name, "Authorization") { // no letter of it folds beyond ASCII
			own = append(own, f)
		} else {
			rest = append(rest, f)
		}
	}
	return own, rest
}
