package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/record"
)

const someProject = "version: 1\nallow: [\"tree.test:*\"]\ndeny: [\"shut.test:*\"]\n"

// serveProject starts a daemon whose sandbox app has a project in the folder tree.
func serveProject(t *testing.T) *regoWorld {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	socket := filepath.Join(t.TempDir(), "app.sock")
	w := serveRego(t, "allow: [\"shut.test:*\", \"open.test:*\"]\nceiling: [\"*.test:*\", \"127.0.0.1:*\"]\n"+
		"sandboxes: [{name: app, listen: \"unix:"+socket+"\", project: tree}]\n", map[string]string{"tree/.egressd/project.yaml": someProject})
	w.proxy = socket
	return w
}

// trust pins the project as it is now.
func (w *regoWorld) trust(t *testing.T) {
	t.Helper()
	dir, store := w.tree(t)
	files, err := config.ReadTree(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(&config.Pin{Dir: dir, Digest: files.Digest(), Trusted: time.Now().UTC(), Files: files}); err != nil {
		t.Fatal(err)
	}
}

// distrust removes the pin of the project.
func (w *regoWorld) distrust(t *testing.T) {
	t.Helper()
	dir, store := w.tree(t)
	if there, err := store.Remove(dir); err != nil || !there {
		t.Fatalf("removed %v, %v", there, err)
	}
}

func (w *regoWorld) tree(t *testing.T) (string, config.TrustStore) {
	t.Helper()
	store, err := config.OpenTrustStore()
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.LoadUnder(filepath.Join(w.dir, config.FileName), filepath.Join(w.dir, "organisation.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := c.TreesAt(filepath.Join(w.dir, "tree"))
	return dir, store
}

func (w *regoWorld) statuses(t *testing.T, port string, hosts ...string) (all []int) {
	t.Helper()
	for _, host := range hosts {
		status, _ := w.connect(t, host+":"+port)
		all = append(all, status)
	}
	return all
}

func TestAProjectCountsAsItWasTrusted(t *testing.T) {
	w := serveProject(t)
	port := upstream(t)
	hosts := []string{"tree.test", "shut.test", "open.test"}
	step := func(what, hears string, want ...int) {
		t.Helper()
		w.hear(t, hears)
		if got := w.statuses(t, port, hosts...); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	step("untrusted", "project.yaml of sandbox app is not trusted", 403, 200, 200)
	note := w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindPolicy && strings.Contains(r.Note, "not trusted")
	})
	if note.Note == "" {
		t.Error("the log does not say that the project is not trusted")
	}
	w.trust(t)
	step("trusted", "policy reloaded", 200, 403, 200)
	w.write(t, "tree/.egressd/project.yaml", "version: 1\nallow: [\"*.test:*\"]\n")
	step("changed", "is not what was trusted", 403, 403, 200)
	if note := w.record(t, func(r *record.Record) bool {
		return r.Kind == record.KindPolicy && strings.Contains(r.Note, "not what was trusted")
	}); note.Note == "" {
		t.Error("the log does not say that the project changed")
	}
	w.write(t, "tree/.egressd/project.yaml", someProject)
	step("as it was", "policy reloaded", 200, 403, 200)
	if err := os.RemoveAll(filepath.Join(w.dir, "tree")); err != nil {
		t.Fatal(err)
	}
	step("gone", "cannot be read as it was trusted", 403, 403, 200)
	w.write(t, "tree/.egressd/project.yaml", someProject)
	step("there again", "policy reloaded", 200, 403, 200)
	w.distrust(t)
	step("revoked", "is not trusted", 403, 200, 200)
}

// TestAHostileTreeDoesNotHoldTheDaemonUp puts what would block or be endless in the
// place of a project.
func TestAHostileTreeDoesNotHoldTheDaemonUp(t *testing.T) {
	w := serveProject(t)
	port := upstream(t)
	w.trust(t)
	w.hear(t, "policy reloaded")
	path := filepath.Join(w.dir, "tree", ".egressd", "project.yaml")
	for name, put := range map[string]func() error{
		"a FIFO":   func() error { return syscall.Mkfifo(path, 0o600) },
		"a device": func() error { return os.Symlink("/dev/zero", path) },
		"a folder": func() error { return os.Mkdir(path, 0o700) },
		"an endless file": func() error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Truncate(path, 1<<40) // takes no room on disk
		},
		"half a file": func() error { return os.WriteFile(path, []byte(someProject[:20]), 0o600) },
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		w.until(t, port, 403, 403, 200)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		w.write(t, "tree/.egressd/project.yaml", someProject)
		w.until(t, port, 200, 403, 200)
		if t.Failed() {
			t.Fatalf("with %s", name)
		}
	}
}

// until waits for a policy that answers the three hosts of a project so.
func (w *regoWorld) until(t *testing.T, port string, want ...int) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		got := w.statuses(t, port, "tree.test", "shut.test", "open.test")
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-w.said: // one more line may mean another policy
		case <-late:
			t.Fatalf("the hosts are answered %v, want %v", got, want)
		}
	}
}
