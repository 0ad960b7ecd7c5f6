package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// awkward holds everything that some encoder treats in its own way.
const awkward = `p/a+s s"w\o<r>d&'` + "`~!(x)%"

// TestRedactEncodings writes each form out by hand. What is left of base64 is
// what the text shares with its surroundings.
func TestRedactEncodings(t *testing.T) {
	for _, tt := range []struct{ name, text, in, want string }{
		{"plain", token, `{"auth":"Bearer sk-live-7Hq2mZ0pXw"}`, `{"auth":"Bearer ******************"}`},
		{"twice in a row", "abcdefgh", "abcdefghabcdefgh", "****************"},
		{"overlapping itself", "abcabcab", "xabcabcabcaby", "x***********y"},
		{"all but its last byte", "abcdefgh", "abcdefg abcdefg", "abcdefg abcdefg"},
		{"in another case", "abcdefgh", "ABCDEFGH", "ABCDEFGH"},
		{"hex", "abcdefgh", "-6162636465666768-", "-****************-"},
		{"hex in capitals", "klmnopqr", "6B6C6D6E6F707172", "****************"},
		{"base64, none ahead", "abcdefgh", "YWJjZGVmZ2g=", "**********g="},
		{"base64, one ahead", "abcdefgh", "OmFiY2RlZmdo", "Om**********"},
		{"base64, two ahead", "abcdefgh", "dTphYmNkZWZnaA==", "dTp**********A=="},
		{"base64 of user and text", "abcdefgh", "Basic dXNlcjphYmNkZWZnaA==", "Basic dXNlcjp**********A=="},
		{"base64 with the two signs", "~~~?????", "fn5+Pz8/Pz8", "**********8"},
		{"base64 in the other alphabet", "~~~?????", "fn5-Pz8_Pz8", "**********8"},
		{"every byte percent-encoded", "klmnopqr", "%6b%6c%6d%6e%6f%70%71%72", "************************"},
		{"in capitals", "klmnopqr", "%6B%6C%6D%6E%6F%70%71%72", "************************"},
		{"reserved bytes percent-encoded", "abc/d+e=", "?q=abc%2Fd%2Be%3D&x", "?q=**************&x"},
		{"in small letters", "abc/d+e=", "?q=abc%2fd%2be%3d&x", "?q=**************&x"},
		{"but for the slash", "abc/d+e=", "abc/d%2Be%3D", "************"},
		{"a space as plus", "pass word", "pass+word pass%20word", "********* ***********"},
		{"JSON, slash", "abc/defg", `"abc\/defg"`, `"*********"`},
		{"JSON, quote and backslash", `abc"de\f`, `"abc\"de\\f"`, `"**********"`},
		{"JSON for HTML", "abc<>&de", `"abc\u003c\u003e\u0026de" "abc\u003C\u003E\u0026de"`, `"***********************" "***********************"`},
		{"JSON, everything", `a"bcdef\`, `a\u0022bcdef\u005c a\u0022bcdef\u005C`, "****************** ******************"},
		{"a text with an asterisk", "abc*defg", "abc*defg*", "########*"},
		{"nothing", token, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := mustNew(t, Options{Text: []byte(tt.text)})
			got, found := s.RedactString(tt.in)
			if got != tt.want || found != (tt.in != tt.want) {
				t.Errorf("%s, %v; want %s", got, found, tt.want)
			}
			r := s.NewRedactor()
			if got := string(r.Redact([]byte(tt.in))) + string(r.Flush()); got != tt.want {
				t.Errorf("as a stream %s, want %s", got, tt.want)
			}
		})
	}
}

// TestRedactWhatEncodersWrite: the forms are those that Go's encoders write, and
// those that others are known to write for this text.
func TestRedactWhatEncodersWrite(t *testing.T) {
	s := mustNew(t, Options{Text: []byte(awkward)})
	marshalled, err := json.Marshal(awkward)
	if err != nil {
		t.Fatal(err)
	}
	var unescaped bytes.Buffer
	enc := json.NewEncoder(&unescaped)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(awkward); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]string{
		"nothing":                 awkward,
		"Go's QueryEscape":        url.QueryEscape(awkward),
		"Go's PathEscape":         url.PathEscape(awkward),
		"Go's JSON":               string(marshalled),
		"Go's JSON, not for HTML": unescaped.String(),
		"hex":                     hex.EncodeToString([]byte(awkward)),
		"capital hex":             fmt.Sprintf("%X", awkward),
		"encodeURIComponent":      "p%2Fa%2Bs%20s%22w%5Co%3Cr%3Ed%26'%60~!(x)%25",
		"encodeURI":               "p/a+s%20s%22w%5Co%3Cr%3Ed&'%60~!(x)%25",
		"Python's quote":          "p/a%2Bs%20s%22w%5Co%3Cr%3Ed%26%27%60~%21%28x%29%25",
		"an HTML form":            "p%2Fa%2Bs+s%22w%5Co%3Cr%3Ed%26%27%60%7E%21%28x%29%25",
		"PHP's JSON":              `p\/a+s s\"w\\o<r>d&'` + "`~!(x)%",
		"PHP's JSON for HTML":     `p\/a+s s\u0022w\\o\u003Cr\u003Ed\u0026\u0027` + "`~!(x)%",
		".NET's JSON":             `p/a\u002Bs s\u0022w\\o\u003Cr\u003Ed\u0026\u0027\u0060~!(x)%`,
	} {
		got, found := s.RedactString(in)
		if !found || strings.Trim(got, "*\"\n") != "" {
			t.Errorf("%s: %s became %s", name, in, got)
		}
	}
}

// TestRedactBase64Anywhere: whatever surrounds the text, no more than a
// character at either end of its base64 is left of it.
func TestRedactBase64Anywhere(t *testing.T) {
	s := bearer(t)
	for name, alphabet := range map[string]*base64.Encoding{
		"std": base64.StdEncoding, "raw std": base64.RawStdEncoding, "url": base64.URLEncoding, "raw url": base64.RawURLEncoding,
	} {
		for ahead := range 7 {
			for behind := range 4 {
				in := alphabet.EncodeToString([]byte(strings.Repeat("\xfb", ahead) + token + strings.Repeat("\xff", behind)))
				got, _ := s.RedactString(in)
				first, end := 8*ahead/6, (8*(ahead+len(token))+5)/6 // all characters that tell something
				if left := strings.ReplaceAll(got[first:end], "*", ""); len(left) > 2 || len(got) != len(in) || got[:first] != in[:first] || got[end:] != in[end:] {
					t.Errorf("%s, %d ahead, %d behind: %s became %s", name, ahead, behind, in, got)
				}
			}
		}
	}
}

func TestFormsAreNotShort(t *testing.T) {
	for _, text := range []string{
		"12345678", "        x"[1:], awkward, token, strings.Repeat(`"`, maxText),
		"abcdef==", "dTpwYXNz", base64.StdEncoding.EncodeToString([]byte("u:p4ssw0r")),
	} {
		for _, e := range formsOf("Basic {}", text) {
			if len(e) < minText {
				t.Errorf("%q has %d bytes", e, len(e))
			}
		}
	}
	if got := len(formsOf(slot, token)); got != 9 { // one of them for the other alphabet
		t.Errorf("an ordinary token has %d forms: %q", got, formsOf(slot, token))
	}
}

// TestRedactATextThatIsBase64 in the forms that only such a text has.
func TestRedactATextThatIsBase64(t *testing.T) {
	s := mustNew(t, Options{Text: []byte("+/v7/39/abcdEFGHIA==")})
	for name, in := range map[string]string{
		"without padding":          "+/v7/39/abcdEFGHIA",
		"the other alphabet":       "-_v7_39_abcdEFGHIA==",
		"that without padding":     "-_v7_39_abcdEFGHIA",
		"Gson's JSON":              `+/v7/39/abcdEFGHIA\u003d\u003d`,
		"JSON, slash":              `+\u002fv7\u002f39\u002fabcdEFGHIA==`,
		"JSON, slash in capitals":  `+\u002Fv7\u002F39\u002FabcdEFGHIA==`,
		"JSON, slash and equals":   `+\u002fv7\u002f39\u002fabcdEFGHIA\u003d\u003d`,
		"JSON, all three":          `\u002b\u002fv7\u002f39\u002fabcdEFGHIA\u003d\u003d`,
		"JSON, equals and a slash": `+\/v7\/39\/abcdEFGHIA\u003D\u003D`,
		"JavaScript's escape":      "+/v7/39/abcdEFGHIA%3D%3D",
		"HTML, as Handlebars":      "+&#x2F;v7&#x2F;39&#x2F;abcdEFGHIA&#x3D;&#x3D;",
		"HTML, in decimal":         "+&#47;v7&#47;39&#47;abcdEFGHIA&#61;&#061;",
		"UTF-16":                   strings.Join(strings.Split("+/v7/39/abcdEFGHIA==", ""), "\x00"),
		"UTF-32":                   strings.Join(strings.Split("+/v7/39/abcdEFGHIA==", ""), "\x00\x00\x00"),
	} {
		if got, found := s.RedactString(in); !found || strings.Trim(got, "*") != "" {
			t.Errorf("%s: %s became %s", name, in, got)
		}
	}
}

func TestRedactOtherJSON(t *testing.T) {
	s := mustNew(t, Options{Text: []byte("ab<c'd=e&f>gh")})
	in := `ab\u003cc\u0027d\u003de\u0026f\u003egh`
	if got, _ := s.RedactString(in); strings.Trim(got, "*") != "" {
		t.Errorf("Gson's %s became %s", in, got)
	}
}

// TestRedactWhatATextSays, where it is base64.
func TestRedactWhatATextSays(t *testing.T) {
	for _, tt := range []struct{ name, template, says, in, want string }{
		{"Basic", "Basic {}", "me:pass-w0rd", "me:pass-w0rd", "************"},
		{"Basic, in JSON", "basic {}", `me:pa"s-w0rd`, `me:pa\"s-w0rd`, "*************"},
		{"Basic, in a URL", "Basic {}", "me:pass-w0rd", "me%3Apass-w0rd", "**************"},
		{"Basic, the password", "Basic {}", "me:pass-w0rd", `{"user":"me","password":"pass-w0rd"}`, `{"user":"me","password":"*********"}`},
		{"Basic, what is not ASCII", "Basic {}", "me:p\u00e4ssw\u00f6rd", "me:p\u00e4ssw\u00f6rd", "*************"},
		{"Basic, a short password", "Basic {}", "somebody:secret", "secret somebody:secret", "secret ***************"},
		{"Basic, all short", "Basic {}", "u:pass", "u:pass", "u:pass"},
		{"another scheme", "Bearer {}", "internal-key", "internal-key", "************"},
		{"another scheme, no password", "Bearer {}", "me:pass-w0rd", "pass-w0rd", "pass-w0rd"},
		{"in hexadecimal", "{}", "abcdefgh", "6162636465666768", "****************"},
		{"nothing that is printable", "{}", "abcdefgh\x00", "abcdefgh\x00", "abcdefgh\x00"},
		{"an asterisk", "{}", "abc*defg", "abc*defg", "########"},
	} {
		for _, alphabet := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding} {
			s := mustNew(t, Options{Value: tt.template, Text: []byte(alphabet.EncodeToString([]byte(tt.says)))})
			if got, found := s.RedactString(tt.in); got != tt.want || found != (tt.in != tt.want) {
				t.Errorf("%s: %s became %s, want %s", tt.name, tt.in, got, tt.want)
			}
		}
	}
}

// TestRedactWhatTheManualClaims writes a secret in each way that the manual names, cuts
// that into pieces, and counts what is left of it.
func TestRedactWhatTheManualClaims(t *testing.T) {
	const text = "Sk-live/7Hq2+mZ0pXw_q9="
	s := mustNew(t, Options{Text: []byte(text)})
	b64 := func(r *rand.Rand) string {
		return base64.StdEncoding.EncodeToString([]byte(around(r, text)))
	}
	for _, claim := range []disguise{
		{"as it is", func(r *rand.Rand, s string) string { return s }},
		{"hexadecimal", func(_ *rand.Rand, s string) string { return hex.EncodeToString([]byte(s)) }},
		{"hexadecimal in capitals", func(_ *rand.Rand, s string) string { return fmt.Sprintf("%X", s) }},
		{"percent, all", func(_ *rand.Rand, s string) string { return percent(s, "", upperHex) }},
		{"percent, some", some(func(c byte) string { return fmt.Sprintf("%%%02x", c) })},
		{"percent, as in a path", func(_ *rand.Rand, s string) string { return url.PathEscape(s) }},
		{"JSON, all", func(_ *rand.Rand, s string) string { return escapedAll(s) }},
		{"JSON, some", some(func(c byte) string { return fmt.Sprintf(`\u%04X`, c) })},
		{"JSON, slashes", func(_ *rand.Rand, s string) string { return strings.ReplaceAll(s, "/", `\/`) }},
		{"base64", func(r *rand.Rand, _ string) string { return b64(r) }},
		{"base64 for URLs", func(r *rand.Rand, s string) string { return base64.URLEncoding.EncodeToString([]byte(around(r, s))) }},
		{"base64 in lines", func(r *rand.Rand, _ string) string { return wrapped(b64(r), 1+r.IntN(76)) }},
		{"base64 in lines that differ", func(r *rand.Rand, _ string) string {
			return some(func(c byte) string { return string(c) + "\n" })(r, b64(r))
		}},
		{"base64 in lines in JSON", func(r *rand.Rand, _ string) string {
			b, _ := json.Marshal(wrapped(b64(r), 1+r.IntN(76)))
			return strings.ReplaceAll(string(b), "/", `\/`)
		}},
		{"base64 in lines, percent-encoded", func(r *rand.Rand, _ string) string { return url.QueryEscape(wrapped(b64(r), 1+r.IntN(76))) }},
		{"quoted-printable, all", func(_ *rand.Rand, s string) string { return quoted(s) }},
		{"quoted-printable, some", some(func(c byte) string { return fmt.Sprintf("=%02x", c) })},
		{"quoted-printable in lines", func(r *rand.Rand, s string) string {
			return some(func(c byte) string { return string(c) + "=\r\n" })(r, s)
		}},
		{"in folded lines", func(r *rand.Rand, s string) string {
			return some(func(c byte) string { return string(c) + "\r\n \t" })(r, s)
		}},
		{"base64 in JSON, escaped", func(r *rand.Rand, _ string) string { return escapedAll(b64(r)) }},
	} {
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(seed, 9))
			in := "<" + claim.write(r, text) + ">"
			got, found := s.RedactString(in)
			if forms := formsOf(slot, text); !found || slices.Contains(allOccurrences([]byte(got), forms), true) || !slices.Contains(allOccurrences([]byte(in), forms), true) {
				t.Fatalf("%s, seed %d: %s became %s", claim.says, seed, in, got)
			}
			red := s.NewRedactor()
			var out []byte
			for at := 0; at < len(in); {
				n := min(1+r.IntN(30), len(in)-at)
				out = append(out, red.Redact([]byte(in[at:at+n]))...)
				at += n
			}
			out = append(out, red.Flush()...)
			more := 0
			for i := range out {
				if out[i] != got[i] {
					more++
				}
			}
			if most := (brokenLeast - 1) * (1 + 6*breaksMost + blanksMost); len(out) != len(in) || more > most || more > 0 && !strings.Contains(claim.says, "lines") {
				t.Fatalf("%s, seed %d: in pieces %s became %s, and as a whole %s", claim.says, seed, in, out, got)
			}
		}
	}
}

// quoted writes each character as in quoted-printable.
func quoted(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "=%02X", c)
	}
	return b.String()
}

// escapedAll writes each character as an escape of JSON.
func escapedAll(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, `\u%04x`, c)
	}
	return b.String()
}

// TestNamesWithEscapes: what a field's name may hold of percent-encoding hides nothing.
func TestNamesWithEscapes(t *testing.T) {
	s := bearer(t)
	for name, want := range map[string]bool{
		"X-" + percent(token, "", lowerHex):                                 true,
		"x-" + strings.ToLower(percent(token, alphanumeric[:30], upperHex)): true,
		"X-%73": false,
		"%":     false,
		"X-%zz": false,
	} {
		if got := s.InName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
