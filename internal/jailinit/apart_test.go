package jailinit

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/lab"
)

// TestFilesThatAreToBeCoveredAreThere takes the folder of one away, as a private one
// does.
func TestFilesThatAreToBeCoveredAreThere(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stays, goes, link := filepath.Join(dir, "stays"), filepath.Join(dir, "run", "resolve", "stub"), filepath.Join(dir, "link")
	if err := os.MkdirAll(filepath.Dir(goes), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{stays, goes} {
		if err := os.WriteFile(path, []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(goes, link); err != nil {
		t.Fatal(err)
	}
	files := resolved([]string{stays, link, filepath.Join(dir, "nowhere")})
	if !slices.Equal(files, []string{stays, goes}) {
		t.Fatalf("they lead to %q", files)
	}
	if err := os.RemoveAll(filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	if err := makeFiles(files); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(link); err != nil || len(b) != 0 {
		t.Errorf("what the link leads to holds %q, %v", b, err)
	}
	if b, err := os.ReadFile(stays); err != nil || string(b) != "text" {
		t.Errorf("what was there holds %q, %v", b, err)
	}
}

func TestLinksInAFolder(t *testing.T) {
	dir := t.TempDir()
	for name, target := range map[string]string{"system": "/nix/store/x", "dangling": "nowhere"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, want := linksIn(dir), (map[string]string{"system": "/nix/store/x", "dangling": "nowhere"}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := linksIn(filepath.Join(dir, "nowhere")); len(got) != 0 {
		t.Errorf("no folder has %v", got)
	}
}

// TestNoTreeIsClonedByALink has a link take the place of a folder that egressd looked at.
func TestNoTreeIsClonedByALink(t *testing.T) {
	if !lab.AsRoot(t) {
		return
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	real, link := filepath.Join(dir, "real", "work"), filepath.Join(dir, "link")
	if err := errors.Join(os.MkdirAll(real, 0o700), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{real: nil, link: unix.ELOOP, filepath.Join(link, "work"): unix.ELOOP, filepath.Join(dir, "missing"): unix.ENOENT} {
		tree, err := clonePlain(path)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if err == nil {
			unix.Close(tree)
		}
	}
}
