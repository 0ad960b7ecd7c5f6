package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestManPagesAreCurrent compares docs/man with what the commands say now.
func TestManPagesAreCurrent(t *testing.T) {
	kept, generated := filepath.Join("..", "..", "docs", "man"), t.TempDir()
	if err := writeManPages(newRootCommand(), generated); err != nil {
		t.Fatal(err)
	}
	want, have := readFolder(t, generated), readFolder(t, kept)
	for name, text := range want {
		if !bytes.Equal(have[name], text) {
			t.Errorf("docs/man/%s is not what the command says; in the root folder: go run ./cmd/egressd man docs/man", name)
		}
	}
	for name := range have {
		if want[name] == nil {
			t.Errorf("docs/man/%s is about a command that does not exist; remove it", name)
		}
	}
}

func readFolder(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = text
	}
	return files
}

func TestRoffTakesNoTextForARequest(t *testing.T) {
	for in, want := range map[string]string{
		".TH x":         `\&.TH x`,
		"a\n'br":        "a\n\\&'br",
		`back\slash -x`: `back\eslash \-x`,
	} {
		if got := roff(in); got != want {
			t.Errorf("roff(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestEveryCommandIsExplained has every command and flag say what it is for,
// and every name fit into the completion of a shell.
func TestEveryCommandIsExplained(t *testing.T) {
	for _, cmd := range newRootCommand().Commands() {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || strings.ContainsAny(cmd.Name(), " :") {
			t.Errorf("%s: %q is not a short line without a full stop", cmd.Name(), cmd.Short)
		}
		if !cmd.SilenceErrors && !cmd.Root().SilenceErrors {
			t.Errorf("%s prints its errors itself", cmd.Name())
		}
	}
}
