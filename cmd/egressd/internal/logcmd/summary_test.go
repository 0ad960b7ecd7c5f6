package logcmd

import (
	"html"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/cmd/egressd/internal/logs"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/records"
)

// FuzzMarkdownText has a sandbox write markup. What stands in the summary is
// letters, digits and references, and says what was written.
func FuzzMarkdownText(f *testing.F) {
	for _, s := range []string{"a.test", "</code><script>alert(1)</script>", "a|b", "[x](http://evil.test)", "`x`", "@everyone #1 www.evil.test", "&lt;", "*_~\\\n", "\x1b[31m\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		code := markdownWhole(s)
		if s == "" {
			return
		}
		text, ok := strings.CutPrefix(code, "<code>")
		text, closed := strings.CutSuffix(text, "</code>")
		if rest := strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 &#;"); !ok || !closed || strings.ContainsAny(text, "<>|`*_[]()!@:/.\\\n") || len(rest) > len(text) {
			t.Fatalf("%q is %q", s, code)
		}
		if html.UnescapeString(text) != cli.Printable(s) {
			t.Fatalf("%q is %q, which says %q", s, text, html.UnescapeString(text))
		}
	})
}

// TestMarkdownTablesKeepTheirShape has every field of a record be markup.
func TestMarkdownTablesKeepTheirShape(t *testing.T) {
	const evil = "a|b</code>\n| `x` [l](http://evil.test) @everyone"
	r := opened("A", evil, "deny")
	r.Sandbox, r.HTTP, r.Decision.Class = evil, &egress.RecordHTTP{Method: evil}, evil
	r.Process = &egress.RecordProcess{Exe: "/bin/" + evil}
	o := overview{Overview: &records.Overview{}}
	o.Add(r)
	var out strings.Builder
	if err := summarised(&o).printMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := strings.Count(line, "|"); n != 0 && n != 8 || strings.ContainsAny(line, "`[@") || strings.Count(line, "</code>") > 5 {
			t.Errorf("a line is %s", line)
		}
	}
}

func TestCellsAreNarrow(t *testing.T) {
	for in, want := range map[string]string{
		"": "–", "…": "…", "a.test": "a.test", "日本": `\u{65e5}\u{672c}`, "\x1b[2J": `\x1b[2J`, "\u202eevil": `\u{202e}evil`, "é": "é", "😀": `\u{1f600}`,
	} {
		if got := logs.Cell(in); got != want {
			t.Errorf("cell(%q) = %q, want %q", in, got, want)
		}
	}
	long := strings.Repeat("a", 200) + ".evil.test:443"
	if got := logs.CutHost(long); len([]rune(got)) != logs.LongestCell || !strings.HasPrefix(got, "aaa") || !strings.HasSuffix(got, "….evil.test:443") && !strings.HasSuffix(got, ".evil.test:443") {
		t.Errorf("the host is cut to %q", got)
	}
	if got := logs.Cut("abcdef", 4); got != "abc…" || logs.Cut("abcd", 4) != "abcd" {
		t.Errorf("cut to %q", got)
	}
}

func TestSparkline(t *testing.T) {
	for want, values := range map[string][]int64{
		" ": {0}, "█": {7}, "▁█ ": {1, 1000, 0}, "▂▄▆█": {2, 4, 6, 8},
	} {
		if got := sparkline(values); got != want {
			t.Errorf("%v: %q, want %q", values, got, want)
		}
	}
}
