package edit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

func fileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "egressd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func opening(t *testing.T, pattern, method, path string) policy.Opening {
	t.Helper()
	p, err := policy.ParsePattern(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Opening{Pattern: p, Method: method, Path: path}
}

// TestALineThatAsks adds a line to the list ask, or refuses it where nobody would be asked.
func TestALineThatAsks(t *testing.T) {
	for _, row := range []struct {
		name, text    string
		line          policy.Opening
		wanted, wrong string // a part of the new text, or of the error
	}{
		{"nothing is said of it", "version: 1\n", opening(t, "a.test:443", "", ""), "ask:\n  - a.test:443\n", ""},
		{"it is allowed", "version: 1\nallow:\n  - a.test:443\n", opening(t, "a.test:443", "", ""), "allow: []\nask:\n  - a.test:443\n", ""},
		{"more is allowed", "version: 1\nallow:\n  - \"*.test\"\n", opening(t, "a.test:443", "", ""), "  - \"*.test\"\nask:\n  - a.test:443\n", ""},
		{"one request", "version: 1\nallow:\n  - a.test:80\n", opening(t, "a.test:80", "POST", "/up"), "  - {host: a.test:80, methods: [POST], paths: [/up]}\n", ""},
		{"it is denied on purpose", "version: 1\ndeny:\n  - a.test\n", opening(t, "a.test:443", "", ""), "", "deny[0]"},
		{"a private address", "version: 1\n", opening(t, "10.0.0.5:8443", "", ""), "", "stay refused"},
	} {
		a, err := New(fileOf(t, row.text), "ask")
		if err != nil {
			t.Fatal(err)
		}
		err = a.Add([]policy.Opening{row.line})
		_, text := a.Texts()
		switch {
		case row.wrong != "" && (err == nil || !strings.Contains(err.Error(), row.wrong)):
			t.Errorf("%s: %v, %q", row.name, err, text)
		case row.wrong == "" && (err != nil || !strings.Contains(text, row.wanted)):
			t.Errorf("%s: %v, %q", row.name, err, text)
		}
	}
}

// TestALineIsTakenOut takes out lines that are about one host alone, and leaves everything else as it is.
func TestALineIsTakenOut(t *testing.T) {
	const text = "version: 1\n# kept\nallow:\n  - a.test # why\n  - a.test:8443\n  - \"*.test\"\n  - {host: b.test, methods: [GET]}\ndeny: [c.test, d.test]\ntests:\n  - allow b.test\n"
	for _, row := range []struct {
		pattern string
		at      []int
		without string
	}{
		{"a.test:443", []int{4}, strings.Replace(text, "  - a.test # why\n", "", 1)},
		{"a.test:8443", []int{5}, strings.Replace(text, "  - a.test:8443\n", "", 1)},
		{"c.test:443", []int{8}, strings.Replace(text, "[c.test, d.test]", "[d.test]", 1)},
		{"x.test:443", nil, ""},
	} {
		a, err := New(fileOf(t, text), "allow")
		if err != nil {
			t.Fatal(err)
		}
		lines := a.LinesAbout(opening(t, row.pattern, "", "").Pattern)
		if len(lines) != len(row.at) || len(lines) > 0 && lines[0].At.Line != row.at[0] {
			t.Errorf("%s: %+v", row.pattern, lines)
			continue
		}
		if len(lines) == 0 {
			continue
		}
		if err := a.TakeOut(lines[0]); err != nil {
			t.Errorf("%s: %v", row.pattern, err)
		}
		if _, after := a.Texts(); after != row.without || !a.Changes() {
			t.Errorf("%s: %q", row.pattern, after)
		}
	}
	a, err := New(fileOf(t, strings.Replace(text, "  - \"*.test\"\n", "", 1)), "allow")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.TakeOut(a.LinesAbout(opening(t, "b.test:443", "", "").Pattern)[0]); err == nil || a.Changes() {
		t.Errorf("a line that a test of the file needs: %v", err)
	}
}
