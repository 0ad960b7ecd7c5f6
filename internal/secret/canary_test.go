package secret

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"
)

const planted = "AKIAQ3EGSIGNALS7+x/Z9kLm"

func canaries(t testing.TB, texts ...string) *Canaries {
	t.Helper()
	var all []Canary
	for i, text := range texts {
		all = append(all, Canary{Name: fmt.Sprint("canary-", i), Text: []byte(text)})
	}
	c, err := NewCanaries(all)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A disguise is one step of what a program may do to a text before it sends it.
type disguise struct {
	says  string
	write func(r *rand.Rand, text string) string
}

// codings are the encodings that a canary is looked for in.
var codings = []disguise{
	{"plain", func(_ *rand.Rand, s string) string { return s }},
	{"lower case", func(_ *rand.Rand, s string) string { return strings.ToLower(s) }},
	{"upper case", func(_ *rand.Rand, s string) string { return strings.ToUpper(s) }},
	{"backwards", func(_ *rand.Rand, s string) string { return reversed(s) }},
	{"hex", func(_ *rand.Rand, s string) string { return hex.EncodeToString([]byte(s)) }},
	{"HEX", func(_ *rand.Rand, s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }},
	{"hex backwards", func(_ *rand.Rand, s string) string { return hex.EncodeToString([]byte(reversed(s))) }},
	{"hex with : or -", func(r *rand.Rand, s string) string {
		return strings.Join(strings.Split(hex.EncodeToString([]byte(s)), ""), []string{":", "-", "::"}[r.IntN(3)])
	}},
	{"hex with some : and -", func(r *rand.Rand, s string) string { return filled(r, fmt.Sprintf("%X", s), []string{":", "-"}) }},
	{"base64", func(r *rand.Rand, s string) string { return base64.StdEncoding.EncodeToString([]byte(around(r, s))) }},
	{"base64 for URLs", func(r *rand.Rand, s string) string { return base64.RawURLEncoding.EncodeToString([]byte(around(r, s))) }},
	{"base64 twice", func(r *rand.Rand, s string) string {
		return base64.StdEncoding.EncodeToString([]byte(around(r, base64.StdEncoding.EncodeToString([]byte(around(r, s))))))
	}},
	{"base64 of UTF-16", func(r *rand.Rand, s string) string {
		return base64.StdEncoding.EncodeToString([]byte(utf16Of(around(r, s), r.IntN(2))))
	}},
	{"base32", func(r *rand.Rand, s string) string { return base32.StdEncoding.EncodeToString([]byte(around(r, s))) }},
	{"base32hex", func(r *rand.Rand, s string) string {
		return strings.ToLower(base32.HexEncoding.EncodeToString([]byte(around(r, s))))
	}},
}

// fillings put characters in between that count for nothing.
var fillings = []disguise{
	{"nothing between", func(_ *rand.Rand, s string) string { return s }},
	{"lines", func(r *rand.Rand, s string) string { return wrapped(s, 1+r.IntN(70)) }},
	{"white space between", func(r *rand.Rand, s string) string { return filled(r, s, []string{" ", "\t", "\n", "\r\n"}) }},
	{"control characters between", func(r *rand.Rand, s string) string {
		return filled(r, s, []string{"\x00", "\x01", "\b", "\v", "\f", "\x1b", "\x7f"})
	}},
	{"characters between that nobody sees", func(r *rand.Rand, s string) string {
		return filled(r, s, []string{"\u200b", "\ufeff", "\u2060", "\u00ad", "\u00a0", "\u200d", "\u2028", "\u3000", "\u0085", "\U000e0041"})
	}},
	{"other bytes between", func(r *rand.Rand, s string) string {
		return filled(r, s, []string{"\u00e9", "\u4e16", "\x80", "\xff\xfe"})
	}},
}

// escapings are how what a canary became may stand in a stream.
var escapings = []disguise{
	{"as it is", func(_ *rand.Rand, s string) string { return s }},
	{"path", func(_ *rand.Rand, s string) string { return url.PathEscape(s) }},
	{"query twice", func(_ *rand.Rand, s string) string { return url.QueryEscape(url.PathEscape(s)) }},
	{"all bytes as percent", func(_ *rand.Rand, s string) string { return percent(s, "", lowerHex) }},
	{"some bytes as percent", some(func(c byte) string { return fmt.Sprintf("%%%02x", c) })},
	{"some bytes as \\u", some(func(c byte) string { return fmt.Sprintf(`\u%04X`, c) })},
	{"some bytes as \\x", some(func(c byte) string { return fmt.Sprintf(`\x%02x`, c) })},
	{"some bytes as &#", some(func(c byte) string { return fmt.Sprintf("&#%d;", c) })},
	{"some bytes as &#x", some(func(c byte) string { return fmt.Sprintf("&#x%x;", c) })},
	{"JSON in ASCII", func(_ *rand.Rand, s string) string {
		b, _ := json.Marshal(s)
		var ascii strings.Builder
		for _, c := range utf16.Encode([]rune(string(b))) {
			if c < 0x80 {
				ascii.WriteByte(byte(c))
			} else {
				fmt.Fprintf(&ascii, `\u%04x`, c)
			}
		}
		return ascii.String()
	}},
	{"JSON in JSON", func(_ *rand.Rand, s string) string {
		b, _ := json.Marshal(strings.ReplaceAll(s, "/", `\/`))
		b, _ = json.Marshal(string(b))
		return string(b)
	}},
	{"UTF-16", func(r *rand.Rand, s string) string { return utf16Of(s, r.IntN(2)) }},
}

// filled puts fillers between some of the characters, never before or behind all.
func filled(r *rand.Rand, s string, fillers []string) string {
	var b strings.Builder
	for i := range len(s) {
		for i > 0 && r.IntN(3) == 0 {
			b.WriteString(fillers[r.IntN(len(fillers))])
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// percent writes all bytes percent-encoded but those that are left.
func percent(text, left, digits string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if strings.IndexByte(left, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', digits[c>>4], digits[c&15]})
	}
	return b.String()
}

const (
	upperHex = "0123456789ABCDEF"
	lowerHex = "0123456789abcdef"
)

func some(write func(byte) string) func(*rand.Rand, string) string {
	return func(r *rand.Rand, s string) string {
		var b strings.Builder
		for i := range len(s) {
			if r.IntN(3) == 0 {
				b.WriteString(write(s[i]))
			} else {
				b.WriteByte(s[i])
			}
		}
		return b.String()
	}
}

func around(r *rand.Rand, s string) string {
	return noise(r, r.IntN(7)) + s + noise(r, r.IntN(7))
}

func noise(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = " abcXYZ019+/=-_{}\"&%\\\n"[r.IntN(22)]
	}
	return string(b)
}

func wrapped(s string, n int) string {
	var b strings.Builder
	for ; len(s) > n; s = s[n:] {
		b.WriteString(s[:n] + "\r\n")
	}
	return b.String() + s
}

// send gives a watch a text in pieces and returns what goes on, which is all where
// nothing is found.
func send(w *Watch, text string, piece func() int) (out string, found bool) {
	sent := 0
	for at := 0; at < len(text); {
		n := min(max(1, piece()), len(text)-at)
		_, span, hit := w.See([]byte(text[at : at+n]))
		if hit {
			return text[:max(sent, 0)], span.To <= int64(at+n)
		}
		at += n
		sent = int(w.Free())
	}
	return text, false
}

// disguised writes a canary in a coding, with a filling, escaped.
func disguised(r *rand.Rand, text string, steps ...disguise) string {
	for _, step := range steps {
		text = step.write(r, text)
	}
	return text
}

// TestACanaryIsFoundInEveryDisguise writes one in every coding, with every filling, in
// every way to escape that, and cuts the stream into pieces.
func TestACanaryIsFoundInEveryDisguise(t *testing.T) {
	c := canaries(t, "another-one-that-is-never-sent", planted)
	for _, coding := range codings {
		for _, filling := range fillings {
			for _, escaping := range escapings {
				for seed := range uint64(8) {
					r := rand.New(rand.NewPCG(seed, 1))
					hidden := disguised(r, planted, coding, filling, escaping)
					text := noise(r, r.IntN(40)) + " " + hidden + noise(r, r.IntN(40))
					at := strings.Index(text, hidden)
					out, found := send(c.NewWatch(), text, func() int { return 1 + r.IntN(1+r.IntN(60)) })
					says := fmt.Sprintf("%s, %s, %s, seed %d", coding.says, filling.says, escaping.says, seed)
					if !found {
						t.Fatalf("%s: not found in %q", says, text)
					}
					left := c.NewWatch()
					if left.See([]byte(out)); left.visible.depth() >= heldFrom || len(out) > at+len(hidden) {
						t.Fatalf("%s: of %q %q left", says, hidden, out[at:])
					}
				}
			}
		}
	}
}

func TestWhatIsNoCanaryPasses(t *testing.T) {
	c := canaries(t, planted, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
	r := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		text := noise(r, r.IntN(400)) + planted[:len(planted)-1] + noise(r, r.IntN(9)) + hex.EncodeToString([]byte(planted[1:]))
		out, found := send(c.NewWatch(), text, func() int { return 1 + r.IntN(40) })
		if found || out != text {
			t.Fatalf("found one in %q", text)
		}
	}
}

// TestNothingWaitsThatIsNotACanary writes messages that end like canaries begin by
// accident.
func TestNothingWaitsThatIsNotACanary(t *testing.T) {
	c := canaries(t, planted)
	for i := range heldFrom {
		w := c.NewWatch()
		text := `{"a":"` + planted[:i]
		if w.See([]byte(text)); w.Free() != int64(len(text)) {
			t.Errorf("after %q %d bytes wait", text, int64(len(text))-w.Free())
		}
	}
	w := c.NewWatch()
	if w.See([]byte("x" + planted[:heldFrom])); w.Free() != 1 {
		t.Errorf("%d bytes pass, want 1", w.Free())
	}
}

func TestCanariesInNames(t *testing.T) {
	c := canaries(t, planted)
	coded := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte("x" + planted + "yz")))
	for _, name := range []string{
		coded[:20] + "." + coded[20:] + ".attacker.test",
		hex.EncodeToString([]byte(planted))[:30] + "-." + hex.EncodeToString([]byte(planted))[30:] + ".attacker.test",
		"AKIAQ3EGSIGNALS7.pypi.org",
	} {
		c := c
		if strings.HasPrefix(name, "AKIA") {
			c = canaries(t, "AKIAQ3EGSIGNALS7")
		}
		if f, found := c.FindName(name); !found || f.Name != "canary-0" {
			t.Errorf("%s: %v, %v", name, f, found)
		}
	}
	for _, name := range []string{"registry.npmjs.org", "akiaq3egsignals.test", ""} {
		if f, found := c.FindName(name); found {
			t.Errorf("%s: %v", name, f)
		}
	}
}

func TestCanariesThatAreRefused(t *testing.T) {
	for says, text := range map[string]string{
		"short": "AKIA0123456789A", "long": strings.Repeat("ab", 129), "a space": "AKIA0123 456789ABCDEF",
		"percent": "AKIA0123%456789ABCDEF", "two lines": "AKIA0123456789AB\nCDEF", "one character": strings.Repeat("a", 20),
	} {
		_, err := NewCanaries([]Canary{{Name: "x", Text: []byte(text)}})
		if err == nil || strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if _, err := NewCanaries(make([]Canary, maxCanaries+1)); err == nil {
		t.Error("too many are taken")
	}
	c := canaries(t, planted)
	for _, shown := range []string{fmt.Sprintf("%+v %#v %s", c, c, c), fmt.Sprintf("%+v", Canary{Text: []byte(planted)}), fmt.Sprintf("%+v", c.NewWatch())} {
		if strings.Contains(shown, planted[:6]) || len(shown) > 100 {
			t.Errorf("shown: %.100s", shown)
		}
	}
}

// TestMaskLeavesJSON masks lines that hold canaries next to escapes and in them.
func TestMaskLeavesJSON(t *testing.T) {
	awkward := "0041BCDEF0123456789"
	c := canaries(t, planted, awkward, `u0041"quote"XYZW0000`)
	r := rand.New(rand.NewPCG(3, 3))
	for range 3000 {
		var b strings.Builder
		for range r.IntN(6) {
			b.WriteString([]string{planted, awkward, `\`, `"`, "A", `\u`, "\n", noise(r, 3), planted[:9], some(func(c byte) string { return fmt.Sprintf(`\u%04x`, c) })(r, planted), `u0041"quote"XYZW0000`,
				disguised(r, planted, codings[r.IntN(len(codings))], fillings[r.IntN(len(fillings))])}[r.IntN(12)])
		}
		line, _ := json.Marshal(map[string]string{"path": b.String(), "end": "x"})
		before := len(line)
		c.Mask(line)
		var read map[string]string
		if err := json.Unmarshal(line, &read); err != nil || len(line) != before {
			t.Fatalf("%v in %s", err, line)
		}
		if f, found := c.Find(string(line)); found || bytes.Contains(line, []byte(planted)) {
			t.Fatalf("%v is still in %s", f, line)
		}
	}
}

// FuzzCanary: whatever stands around a canary, in any coding, with any filling, in any way
// to escape that, and in pieces of any size, it is found before it has left whole.
func FuzzCanary(f *testing.F) {
	f.Add([]byte("before"), []byte("after"), uint(3), uint64(1))
	f.Add([]byte("%4"), []byte("%"), uint(0), uint64(2))
	f.Add([]byte("\\"), []byte(""), uint(7+15*4), uint64(3))
	c := canaries(f, planted)
	f.Fuzz(func(t *testing.T, before, after []byte, which uint, seed uint64) {
		coding := codings[which%uint(len(codings))]
		which /= uint(len(codings))
		filling := fillings[which%uint(len(fillings))]
		which /= uint(len(fillings))
		escaping := escapings[which%uint(len(escapings))]
		r := rand.New(rand.NewPCG(seed, 5))
		hidden := disguised(r, planted, coding, filling, escaping)
		text := string(before) + " " + hidden + string(after)
		out, found := send(c.NewWatch(), text, func() int { return 1 + r.IntN(50) })
		if !found || len(out) >= len(before)+1+len(hidden) {
			t.Fatalf("%s, %s, %s: found %v in %q, of which %d bytes left", coding.says, filling.says, escaping.says, found, text, len(out))
		}
	})
}

func BenchmarkWatch(b *testing.B) {
	c := canaries(b, planted, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
	text := []byte(strings.Repeat(`{"role":"user","content":"some words of a model\n"}`, 700))
	b.SetBytes(int64(len(text)))
	w := c.NewWatch()
	for b.Loop() {
		w.See(text)
	}
}
