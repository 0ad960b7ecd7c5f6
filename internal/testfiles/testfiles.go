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
	for root := ".."; len(root) < 64; root = filepath.Join(root, "..") {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(append([]string{root}, names...)...)
		}
	}
	t.Fatal("there is no go.mod above this folder")
	return ""
}

// Manual is the text of docs/manual.md.
func Manual(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(Path(t, "docs", "manual.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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
