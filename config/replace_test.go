package config

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func writtenFile(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}

func contentOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestReplaceFileKeepsModeAndOwner gives the file to somebody else first,
// where the test may.
func TestReplaceFileKeepsModeAndOwner(t *testing.T) {
	path := writtenFile(t, "p.yaml", "old", 0o640)
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 4321, 1234); err != nil {
			t.Fatal(err)
		}
	}
	before := statOf(t, path)
	if target, err := ReplaceFile(path, []byte("old"), []byte("new")); err != nil || target != path {
		t.Fatal(target, err)
	}
	after := statOf(t, path)
	if after.Mode != before.Mode || after.Uid != before.Uid || after.Gid != before.Gid {
		t.Errorf("mode %o of %d:%d became %o of %d:%d", before.Mode, before.Uid, before.Gid, after.Mode, after.Uid, after.Gid)
	}
	if got := contentOf(t, path); got != "new" {
		t.Errorf("the file holds %q", got)
	}
	if after.Ino == before.Ino {
		t.Error("the file was written in place, where a reader can see half of it")
	}
	onlyEntry(t, path)
}

func TestReplaceFileFollowsALink(t *testing.T) {
	path := writtenFile(t, "p.yaml", "old", 0o600)
	link := filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	target, err := ReplaceFile(link, []byte("old"), []byte("new"))
	if err != nil || target != path || contentOf(t, path) != "new" {
		t.Errorf("wrote %q into %s: %v", contentOf(t, path), target, err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is one no more: %v", err)
	}
	onlyEntry(t, link)
}

func TestReplaceFileKeepsWhatSomebodyElseWrote(t *testing.T) {
	path := writtenFile(t, "p.yaml", "theirs", 0o600)
	if _, err := ReplaceFile(path, []byte("old"), []byte("new")); err == nil {
		t.Error("a file that had changed was replaced")
	}
	if got := contentOf(t, path); got != "theirs" {
		t.Errorf("the file holds %q", got)
	}
	onlyEntry(t, path)
}

func TestReplaceFileRefusesWhatIsNoFile(t *testing.T) {
	if _, err := ReplaceFile(t.TempDir(), nil, []byte("new")); err == nil {
		t.Error("a folder was replaced")
	}
	if _, err := ReplaceFile(filepath.Join(t.TempDir(), "none.yaml"), nil, []byte("new")); err == nil {
		t.Error("a file was made")
	}
}

func statOf(t *testing.T, path string) *syscall.Stat_t {
	t.Helper()
	var s syscall.Stat_t
	if err := syscall.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// onlyEntry has nothing left beside the file.
func onlyEntry(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside %s stand %v, %v", path, entries, err)
	}
}
