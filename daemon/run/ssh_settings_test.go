package run

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestSSHSettingsOfRootAreCopied has files that include others. Only those of root count: who runs the tests may be another.
func TestSSHSettingsOfRootAreCopied(t *testing.T) {
	dir := t.TempDir()
	for name, f := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"config":        {"# Include none\nHost *\n  include " + dir + "/d/*.conf\nInclude=\"" + dir + "/more\" " + dir + "/missing\n", 0o644},
		"d/10.conf":     {"Include " + dir + "/config " + dir + "/d/10.conf " + dir + "/deep\nUser a\n", 0o644},
		"d/20.conf":     {"", 0o600},
		"d/others.conf": {"User b\n", 0o666},
		"more":          {"Port 1\n", 0o644},
		"deep":          {"Port 2\n", 0o644},
		"d/not":         {"Port 3\n", 0o644},
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.text), f.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	covered := map[string][]byte{}
	coverIncluded(covered, filepath.Join(dir, "config"), 0)
	var want []string
	if os.Geteuid() == 0 {
		want = []string{"config", "d/10.conf", "d/20.conf", "deep", "more"}
	}
	var got []string
	for _, path := range slices.Sorted(maps.Keys(covered)) {
		name, _ := filepath.Rel(dir, path)
		got = append(got, name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("copied %q, want %q", got, want)
	}
	if coverSSH(covered); os.Geteuid() == 0 && len(covered) != len(want) {
		t.Error("root needs no copies")
	}
}
