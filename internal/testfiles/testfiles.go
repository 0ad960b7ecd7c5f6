// Package testfiles has the files that tests of several packages read and write.
package testfiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Path is the path of a file of the project, from the folder of a test's package.
func Path(t *testing.T, names ...string) string {
	t.Helper()
	for root := "."; len(root) < 64; root = filepath.Join(root, "..") {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(append([]string{root}, names...)...)
		}
	}
	t.Fatal("there is no go.mod above this folder")
	return ""
}

// Page is the text of one page of the documentation, by its path below docs.
func Page(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(Path(t, "docs", filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Pages are the pages of the documentation, by their paths below docs. Decisions are not among them.
func Pages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, folder := range []string{".", "tutorial", "how-to", "reference", "reference/cli", "explanation"} {
		found, err := filepath.Glob(Path(t, "docs", folder, "*.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			name := filepath.ToSlash(filepath.Join(folder, filepath.Base(path)))
			pages[name] = Page(t, name)
		}
	}
	if len(pages) < 20 {
		t.Fatalf("the documentation has %d pages", len(pages))
	}
	return pages
}

// A CodeBlock is a fenced block of a page, without the indentation of the list that it stands in.
type CodeBlock struct{ Kind, Text string }

// CodeBlocks returns the fenced blocks of a page.
func CodeBlocks(page string) (all []CodeBlock) {
	inside, indent := false, ""
	for line := range strings.Lines(page) {
		trimmed := strings.TrimLeft(line, " ")
		fence, isFence := strings.CutPrefix(trimmed, "```")
		switch {
		case isFence && !inside:
			inside, indent = true, line[:len(line)-len(trimmed)]
			all = append(all, CodeBlock{Kind: strings.TrimSpace(fence)})
		case isFence:
			inside = false
		case inside:
			all[len(all)-1].Text += strings.TrimPrefix(line, indent)
		}
	}
	return all
}

// Prose returns a page without its fenced blocks.
func Prose(page string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			inside = !inside
		} else if !inside {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Block is the first block of a kind that follows a text of a page.
func Block(t *testing.T, page, kind, after string) string {
	t.Helper()
	_, rest, _ := strings.Cut(Page(t, page), after)
	for _, b := range CodeBlocks(rest) {
		if b.Kind == kind {
			return b.Text
		}
	}
	t.Fatalf("docs/%s has no block %s after %q", page, kind, after)
	return ""
}

// Inline is the first text of a page in backquotes that begins with a text, without its line breaks.
func Inline(t *testing.T, page, begin string) string {
	t.Helper()
	_, rest, found := strings.Cut(Page(t, page), "`"+begin)
	text, _, closed := strings.Cut(rest, "`")
	if !found || !closed {
		t.Fatalf("docs/%s has no text `%s…`", page, begin)
	}
	return strings.Join(strings.Fields(begin+text), " ")
}

// FilesIn writes files into a new folder.
func FilesIn(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Hostile are what a program may have written wherever it chooses a text.
var Hostile = []string{
	"\x1b[31mred\x1b]8;;http://evil.test\ax\x1b]8;;\a\x1b]52;c;ZXZpbA==\a\x1bP+q\x1b\\",
	"two\nlines\r\n", "\xc2\x9b31m in UTF-8, \x9b31m and \x9d0;t\x9c in bytes", "\u202eevil\u2066x\u2069\u200f\u061c", "\u200b\u200d\u2060\ufeff\u00ad",
	"a" + strings.Repeat("\u0301", 40), "tab\tcr\rbs\b\bdel\x7f", "npm      preset:npm      09:50:02", " lead and trail ", "x  ✓  allow  y",
	"##[set-output name=x]y", "###vso[task.setvariable variable=a]b", "::set-output name=x::y", "…", "–",
	"a|b`c`<img src=//evil.test/x>![i](http://evil.test/b)", "@everyone #1 www.evil.test user@evil.test https://evil.test/x",
	strings.Repeat("A", 255), "\ufffd \xff", "%{x}%s%n", "$(id)`id`'\"", "\u2028\u2029x", "\U000e0041", "\u3164",
}
