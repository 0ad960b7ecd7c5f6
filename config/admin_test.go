package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func defaultAdminSockets(t *testing.T, path string) []string {
	t.Helper()
	c, err := New(path, []byte("version: 1\n"), "/nonexistent")
	if err != nil {
		t.Fatal(err)
	}
	return c.DefaultAdminSockets()
}

// TestBothEndsFindTheDefaultSocket has the daemon and its operator start in different environments.
func TestBothEndsFindTheDefaultSocket(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, "p.yaml")
	t.Setenv("HOME", home)
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("XDG_STATE_HOME", "")
	without := defaultAdminSockets(t, path)
	t.Setenv("XDG_RUNTIME_DIR", "/session")
	if !slices.Equal(without, defaultAdminSockets(t, path)) {
		t.Error("XDG_RUNTIME_DIR moves the socket")
	}
	system := filepath.Join("/var/lib/egressd/admin", filepath.Base(without[0]))
	if !slices.Contains(without, system) {
		t.Errorf("%v, without %s", without, system)
	}
	if os.Geteuid() == 0 && without[0] != system {
		t.Errorf("root's daemon listens at %s", without[0])
	}
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	if first := defaultAdminSockets(t, path)[0]; first != filepath.Join(home, "state/egressd/admin", filepath.Base(system)) {
		t.Error(first)
	}
}

// TestEachPolicyFileHasItsOwnSocket tells files apart, and not the ways to write one file.
func TestEachPolicyFileHasItsOwnSocket(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir := t.TempDir()
	for _, name := range []string{"first.yaml", "second.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("version: 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	first := defaultAdminSockets(t, filepath.Join(dir, "first.yaml"))[0]
	for _, same := range []string{"first.yaml", "./first.yaml", filepath.Join(link, "first.yaml")} {
		if got := defaultAdminSockets(t, same)[0]; got != first {
			t.Errorf("%s is at %s, not at %s", same, got, first)
		}
	}
	if defaultAdminSockets(t, "second.yaml")[0] == first {
		t.Error("two policy files have one socket")
	}
	if err := os.Remove("first.yaml"); err != nil { // as a ConfigMap replaces it
		t.Fatal(err)
	}
	if err := os.Symlink("second.yaml", "first.yaml"); err != nil {
		t.Fatal(err)
	}
	if got := defaultAdminSockets(t, "first.yaml")[0]; got != first {
		t.Error("the socket moved with a link")
	}
}

// TestTheAdminListenerCanBeSwitchedOff reads listen.admin: none.
func TestTheAdminListenerCanBeSwitchedOff(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for text, want := range map[string]bool{"": true, "listen: {admin: none}": false, "listen: {admin: \"127.0.0.1:9464\"}": true} {
		c, err := New("p.yaml", []byte("version: 1\n"+text+"\n"), "/nonexistent")
		if err != nil {
			t.Fatal(err)
		}
		if name := c.AdminName(); (name != "") != want || want && text == "" && !strings.HasPrefix(name, "unix:/") {
			t.Errorf("%q has %q", text, name)
		}
	}
}
