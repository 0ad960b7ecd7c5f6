package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	for _, text := range []string{"one", "", "three"} {
		if err := Replace(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err := errors.Join(err, statErr); err != nil || string(got) != text || info.Mode() != 0o666 {
			t.Fatalf("it holds %q, not %q: %v", got, text, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("something is left behind: %v %v", entries, err)
	}
}

// TestReplaceLeavesWhatItCannotReplace has a folder in the place of the file.
func TestReplaceLeavesWhatItCannotReplace(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "name", "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "name"), []byte("text"), 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || !entries[0].IsDir() {
		t.Errorf("something is left behind: %v %v", entries, err)
	}
}

// TestReplaceDoesNotFollowALink: what it leads to may be somebody else's.
func TestReplaceDoesNotFollowALink(t *testing.T) {
	dir := t.TempDir()
	other, path := filepath.Join(dir, "other"), filepath.Join(dir, "path")
	if err := errors.Join(os.WriteFile(other, []byte("theirs"), 0o600), os.Symlink(other, path)); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{other: "theirs", path: "ours"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s holds %q: %v", name, got, err)
		}
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	if _, err := Read(path, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	for text, whole := range map[string]bool{"": true, "four": true, "fives": false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path, 4)
		if (err == nil) != whole || whole && string(got) != text || !whole && (got != nil || !strings.Contains(err.Error(), path)) {
			t.Errorf("of %q it reads %q: %v", text, got, err)
		}
	}
}

// TestPlainWaitsForNobody has what a sandbox may leave behind in the place of a file.
func TestPlainWaitsForNobody(t *testing.T) {
	dir := t.TempDir()
	fifo, link, text := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "text")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink(text, link), os.WriteFile(text, []byte("text"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, plain := range map[string]bool{text: true, link: true, fifo: false, dir: false, os.DevNull: false, "/dev/zero": false} {
		got, err := Plain(path, 4)
		if (err == nil) != plain || plain && string(got) != "text" {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if _, err := Plain(text, 3); err == nil {
		t.Error("a file that is too large was read")
	}
}

// TestPlainFilesThatAreNotThere are told apart, by the path that was asked for.
func TestPlainFilesThatAreNotThere(t *testing.T) {
	dir := t.TempDir()
	gone, loop := filepath.Join(dir, "gone"), filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if _, err := Plain(gone, 1); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), gone) {
		t.Errorf("what is not there: %v", err)
	}
	if _, err := Plain(loop, 1); !errors.Is(err, syscall.ELOOP) || !strings.Contains(err.Error(), loop) {
		t.Errorf("a loop of links: %v", err)
	}
}
