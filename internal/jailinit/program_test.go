package jailinit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestAProgramIsFoundAsAShellFindsIt looks programs up.
func TestAProgramIsFoundAsAShellFindsIt(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{
		filepath.Join(dir, "tool"): 0o755, filepath.Join(dir, "text"): 0o644, filepath.Join(other, "text"): 0o755, filepath.Join(dir, "plain"): 0o644,
	} {
		if err := os.WriteFile(path, []byte("#!/bin/true\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=/nowhere:" + dir + ":" + other}
	for _, row := range []struct {
		name, path string
		missing    bool
	}{
		{"tool", filepath.Join(dir, "tool"), false},
		{"text", filepath.Join(other, "text"), false},
		{filepath.Join(dir, "tool"), filepath.Join(dir, "tool"), false},
		{"plain", "", false},
		{"folder", "", false},
		{"absent", "", true},
		{"./absent", "", true},
		{filepath.Join(dir, "tool", "x"), "", true},
		{filepath.Join(dir, "folder"), "", false},
	} {
		path, err := Find(Program{Argv: []string{row.name}, Env: env})
		var problem *ExecError
		switch {
		case row.path != "" && (err != nil || path != row.path):
			t.Errorf("%s: %q, %v", row.name, path, err)
		case row.path == "" && (!errors.As(err, &problem) || problem.Missing != row.missing):
			t.Errorf("%s: %q, %v", row.name, path, err)
		}
	}
}

// TestAnEmptyPathIsNoFolder is about the one that is written, and the one that is not.
func TestAnEmptyPathIsNoFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("tool", nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for list, path := range map[string]string{"": "", ":": "tool", "/nowhere:": "tool", "/nowhere": "", ".": "tool"} {
		if got, err := Find(Program{Argv: []string{"tool"}, Env: []string{"PATH=" + list}}); got != path || (err == nil) != (path != "") {
			t.Errorf("PATH=%s: %q, %v, want %q", list, got, err, path)
		}
	}
}
