package jailinit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestOtherPathsOfAFile(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path, same, other := filepath.Join(dir, "home", "a", "f"), filepath.Join(dir, "mnt of", "a", "f"), filepath.Join(dir, "else", "a", "f")
	for _, p := range []string{path, same, other} {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, same); err != nil { // a bind mount is as much the same file
		t.Fatal(err)
	}
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	table := strings.ReplaceAll(`21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 8:2 /users DIR/home rw - ext4 /dev/sda2 rw
23 21 8:2 / DIR/root rw - ext4 /dev/sda2 rw
24 21 8:2 /users DIR/mnt\040of rw - ext4 /dev/sda2 rw
25 21 8:2 /users DIR/else rw - ext4 /dev/sda2 rw
26 21 8:3 /users DIR/mnt\040of rw - ext4 /dev/sda3 rw
`, "DIR", dir)
	mounts := readMounts(table)
	if got := aliases(path, mounts); !slices.Equal(got, []string{same}) {
		t.Errorf("found %q, want %q", got, same)
	}
}

func TestTheWayToAFile(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.MkdirAll(in("real/conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in("real/conf/f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"folder": "real/../real/conf", "file": in("folder/f"), "loop": "loop", "nowhere": "gone"} {
		if err := os.Symlink(to, in(link)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := trail(in("file")); err != nil || !slices.Equal(got, []string{in("file"), in("folder"), in("real/conf/f")}) {
		t.Errorf("%q, %v", got, err)
	}
	for _, name := range []string{"loop", "nowhere", "real/conf/f/x"} {
		if got, err := trail(in(name)); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}
