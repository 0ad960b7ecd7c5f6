package log

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// TestMarkdownText has a sandbox write markup. What stands in the summary is one code
// span in one cell of a table.
func TestMarkdownText(t *testing.T) {
	markup := append(testfiles.Hostile, "a.test", "</code><script>alert(1)</script>", "`` ` ``", "\\|", "a`|`b", "&lt;", "*_~\\\n", " ` ")
	piece := rapid.OneOf(rapid.SampledFrom(markup), rapid.SampledFrom([]string{"`", "|", "\\", "\r", "\n", " ", "\x60", "\u2028"}), rapid.String())
	rapid.Check(t, func(rt *rapid.T) {
		s := strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(rt, "text"), "")
		code := cli.MarkdownWhole(s)
		if s == "" {
			return
		}
		text, ok := strings.CutPrefix(code, "`")
		text, closed := strings.CutSuffix(text, "`")
		if !ok || !closed || text == "" || strings.ContainsAny(text, "`|\n\r") || strings.TrimSpace(text) != text {
			rt.Fatalf("%q is %q", s, code)
		}
		if says := strings.NewReplacer(`\x60`, "`", `\x7c`, "|").Replace(text); says != printable.Word(s) && !strings.Contains(s, `\x`) {
			rt.Fatalf("%q is %q, which says %q", s, text, says)
		}
	})
}

// TestMarkdownTablesKeepTheirShape has every field of a record be markup.
func TestMarkdownTablesKeepTheirShape(t *testing.T) {
	for _, evil := range append(testfiles.Hostile, "a|b</code>\n| `x` [l](http://evil.test) @everyone", "\\|`\\") {
		r := opened("A", evil, "deny")
		r.Sandbox, r.HTTP, r.Decision.Class = evil, &record.HTTP{Method: evil}, evil
		r.Process = &record.Process{Exe: "/bin/" + evil}
		o := overview{Overview: &logs.Overview{}}
		o.Add(r)
		var out strings.Builder
		if err := summarised(&o).printMarkdown(&out); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			bare := codeSpan.ReplaceAllString(line, "")
			if n := strings.Count(line, "|"); n != 0 && n != 8 || strings.ContainsAny(bare, "`[<@&") {
				t.Errorf("a line is %s", line)
			}
		}
	}
}

var codeSpan = regexp.MustCompile("`[^`]+`")

func TestCellsAreNarrow(t *testing.T) {
	for in, want := range map[string]string{
		"": "–", "…": "…", "a.test": "a.test", "日本": `\u{65e5}\u{672c}`, "\x1b[2J": `\x1b[2J`, "\u202eevil": `\u{202e}evil`, "é": "é", "😀": `\u{1f600}`,
	} {
		if got := cli.Cell(in); got != want {
			t.Errorf("logs.Cell(%q) = %q, want %q", in, got, want)
		}
	}
	long := strings.Repeat("a", 200) + ".evil.test:443"
	if got := cli.CutHost(long); len([]rune(got)) != cli.LongestCell || !strings.HasPrefix(got, "aaa") || !strings.HasSuffix(got, "….evil.test:443") && !strings.HasSuffix(got, ".evil.test:443") {
		t.Errorf("the host is cut to %q", got)
	}
	if got := cli.Cut("abcdef", 4); got != "abc…" || cli.Cut("abcd", 4) != "abcd" {
		t.Errorf("cut to %q", got)
	}
}
