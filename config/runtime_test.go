package config

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTheFolderOfSocketsIsFoundWithoutItsVariable reads a policy under cron, and in a session.
func TestTheFolderOfSocketsIsFoundWithoutItsVariable(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	const text = "version: 1\nlisten: {admin: \"unix:${XDG_RUNTIME_DIR}/egressd/admin.sock\"}\n"
	socket := func() string {
		t.Helper()
		c, err := New("p.yaml", []byte(text), filepath.Join(state, "none.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return c.AdminSocket()
	}
	t.Setenv("XDG_RUNTIME_DIR", "/session")
	if got := socket(); got != "/session/egressd/admin.sock" {
		t.Error(got)
	}
	if err := os.Unsetenv("XDG_RUNTIME_DIR"); err != nil {
		t.Fatal(err)
	}
	want := runtimeFolder() + "/egressd/admin.sock"
	if got := socket(); got != want || !filepath.IsAbs(got) {
		t.Errorf("%s, want %s", got, want)
	}
	c, err := New("p.yaml", []byte("version: 1\nlisten: {admin: \"unix:${NO_SUCH_FOLDER}/a.sock\"}\n"), filepath.Join(state, "none.yaml"))
	if err != nil || len(c.File.Unset("listen.admin")) != 1 {
		t.Errorf("another variable that is not set is taken for something: %v", err)
	}
}
