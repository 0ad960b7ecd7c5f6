package jailinit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWaysOutThatAreOpenAreFound tries outside of a jail what is tried in one.
func TestWaysOutThatAreOpenAreFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		says string
		try  func(Program) string
		p    Program
		want string
	}{
		{"calls", tryCalls, Program{}, ": "},
		{"a terminal", tryTerminal, Program{}, "ioctl"},
		{"a family", tryFamilies, Program{}, "socket("},
		{"mounts", tryMounts, Program{}, "unshare: "},
		{"mounts that are wanted", tryMounts, Program{Nested: true}, ""},
		{"the parent", tryParent, Program{}, ""},
		{"privileges", tryPrivileges, Program{}, "s"},
		{"a file that is hidden", tryFiles, Program{Hidden: []string{file}}, file},
		{"a folder that is hidden", tryFiles, Program{Hidden: []string{filepath.Dir(file)}}, file},
		{"a file that is fixed", tryFiles, Program{Fixed: []string{file}}, file + " can be written"},
		{"a file that is covered", tryFiles, Program{Covered: map[string][]byte{file: nil}}, file + " can be written"},
	} {
		if got := row.try(row.p); !strings.Contains(got, row.want) || (got == "" && row.want != "") {
			t.Errorf("%s: %q, want %q", row.says, got, row.want)
		}
	}
	if got := tryFiles(Program{Hidden: []string{file + "x", os.DevNull}, Fixed: []string{file + "y"}}); got != "" {
		t.Errorf("what is closed: %q", got)
	}
}
