package printable

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"plain /path?x=1 é":    "plain /path?x=1 é",
		"\x1b[2Jclear":         `\x1b[2Jclear`,
		"two\r\nlines\t":       `two\x0d\x0alines\x09`,
		"\u202etxt.exe":        `\u{202e}txt.exe`,
		"zero\u200bwidth":      `zero\u{200b}width`,
		"c1 \u009b31m":         `c1 \u{9b}31m`,
		"combining a\u0301":    `combining a\u{301}`,
		"blank \u3164\u2800":   `blank \u{3164}\u{2800}`,
		"broken \xff utf-8":    `broken \xff utf-8`,
		"del \x7f":             `del \x7f`,
		"tag \U000e0041 plane": `tag \u{e0041} plane`,
		"##[group]a":           `#\x23[group]a`,
		"#1 ### b":             `#1 ### b`,
		"###vso[a.b]c":         `##\x23vso[a.b]c`,
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b]0;title\a")
	f.Fuzz(func(t *testing.T, s string) {
		shown := Text(s)
		if i := strings.IndexFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsMark(r) }); i >= 0 {
			t.Errorf("Text(%q) = %q, with an unprintable character at %d", s, shown, i)
		}
		if regexp.MustCompile(`##[A-Za-z]*\[`).MatchString(shown) {
			t.Errorf("Text(%q) = %q, which a runner reads", s, shown)
		}
		if w := Word(s); strings.Contains(w, "  ") || strings.TrimSpace(w) != w || Text(w) != w {
			t.Errorf("Word(%q) = %q", s, w)
		}
		if again := Text(shown); again != shown {
			t.Errorf("printable is not stable: %q, then %q", shown, again)
		}
	})
}

func TestWordHasNoGaps(t *testing.T) {
	for in, want := range map[string]string{
		"a plain word": "a plain word", "": "", " a": `\x20a`, "a ": `a\x20`, "a   b": `a \x20\x20b`, " ": `\x20`,
		"::1": "::1", "::ffff:1.2.3.4": "::ffff:1.2.3.4", "::error::x": `\x3a:error::x`, "a::b::c": "a::b::c",
	} {
		if got := Word(in); got != want {
			t.Errorf("Word(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestJSONKeepsTheValue(t *testing.T) {
	const value = "##[x] ###vso[y] ünïcode \u202e \U0001f600 \x7f end"
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	ascii := JSON(text)
	if i := strings.IndexFunc(string(ascii), func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
		t.Errorf("%s is not printable ASCII at %d", ascii, i)
	}
	if strings.Contains(string(ascii), "##") {
		t.Errorf("a runner reads %s", ascii)
	}
	var got string
	if err := json.Unmarshal(ascii, &got); err != nil || got != value {
		t.Errorf("read back %q, %v; want %q", got, err, value)
	}
}
