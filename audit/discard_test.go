package audit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDiscardRemovesALogWithoutRecords has a log made and removed, and then one that has a record.
func TestDiscardRemovesALogWithoutRecords(t *testing.T) {
	dir, keys := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "keys")
	made := func() *Log {
		l, err := Create(dir, Options{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := made()
	if err := Discard(dir, keys); !errors.Is(err, ErrLocked) {
		t.Errorf("while it is open: %v", err)
	}
	l.Close()
	if err := Discard(dir, keys); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(keys, "*")); len(left) > 0 {
		t.Errorf("keys are left: %q", left)
	}
	l = made()
	if _, err := l.Append([]byte(`{"kind":"start"}`)); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := Discard(dir, keys); err == nil {
		t.Error("a log with a record is removed")
	}
	if l, err := Open(dir, Options{Keys: keys}); err != nil {
		t.Errorf("it does not open any more: %v", err)
	} else {
		l.Close()
	}
}

// TestTheLockNamesItsHolder reads the lock as a process of another PID namespace does.
func TestTheLockNamesItsHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l, err := Create(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	name, _ := os.Hostname()
	if pid, host := WriterElsewhere(dir); pid != os.Getpid() || host != name {
		t.Errorf("%d %q", pid, host)
	}
	for _, text := range []string{"", "x y\n", "-1 y\n", "12\n", strings.Repeat("1", 4096)} {
		if err := os.WriteFile(filepath.Join(dir, "lock"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if pid, host := WriterElsewhere(dir); pid != 0 || host != "" {
			t.Errorf("%.9q: %d %q", text, pid, host)
		}
	}
}
