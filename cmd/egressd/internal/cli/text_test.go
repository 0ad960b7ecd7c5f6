package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

func TestPrintable(t *testing.T) {
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
		"#1 ###":               `#1 #\x23#`,
	} {
		if got := Printable(in); got != want {
			t.Errorf("Printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("\x1b]0;title\a")
	f.Fuzz(func(t *testing.T, s string) {
		shown := Printable(s)
		if i := strings.IndexFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsMark(r) }); i >= 0 {
			t.Errorf("Printable(%q) = %q, with an unprintable character at %d", s, shown, i)
		}
		if strings.Contains(shown, "##") {
			t.Errorf("Printable(%q) = %q, which a runner reads", s, shown)
		}
		if w := Word(s); strings.Contains(w, "  ") || strings.TrimSpace(w) != w || Printable(w) != w {
			t.Errorf("Word(%q) = %q", s, w)
		}
		if again := Printable(shown); again != shown {
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

func TestASCIIJSONKeepsTheValue(t *testing.T) {
	const value = "##[x] ###vso[y] ünïcode \u202e \U0001f600 \x7f end"
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	ascii := ASCIIJSON(text)
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

func TestShellQuoteIsOneWord(t *testing.T) {
	for in, want := range map[string]string{
		"":               "''",
		"plain":          "'plain'",
		"a b $(id) `id`": "'a b $(id) `id`'",
		"it's":           `'it'\''s'`,
	} {
		if got := ShellQuote(in); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestReportNeverPrintsControlCharacters(t *testing.T) {
	var b strings.Builder
	if code := Report(&b, Failed(errEvil, "")); code != ExitFailed {
		t.Errorf("code %d, want %d", code, ExitFailed)
	}
	const want = "egressd: error: host \\x1b[31m\negressd: error: second line\negressd: hint: egressd help\n"
	if b.String() != want {
		t.Errorf("printed %q, want %q", b.String(), want)
	}
}

const errEvil = evil("host \x1b[31m\nsecond line")

type evil string

func (e evil) Error() string { return string(e) }

func TestPaletteIsForTerminalsAndObeysNoColor(t *testing.T) {
	terminal, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a character device, as terminals are
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !PaletteFor(terminal).on {
		t.Error("no colour on a terminal")
	}
	if PaletteFor(file).on || PaletteFor(new(strings.Builder)).on {
		t.Error("colour in a file")
	}
	t.Setenv("NO_COLOR", "1")
	if PaletteFor(terminal).on {
		t.Error("colour against NO_COLOR")
	}
}

func TestMarkTellsActionsApartWithoutColour(t *testing.T) {
	for action, want := range map[string]string{"allow": "✓", "deny": "✗", "ask": "?", "": "·"} {
		if got := (Palette{}).Mark(action); got != want {
			t.Errorf("the mark of %q is %q, want %q", action, got, want)
		}
		if got := (Palette{on: true}).Mark(action); !strings.Contains(got, want) {
			t.Errorf("the coloured mark of %q is %q, without its shape", action, got)
		}
	}
}
