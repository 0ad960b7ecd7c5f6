// Package clitest has what tests of several commands need.
package clitest

import (
	"os"
	"path/filepath"
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
