package runs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/logs/sink"
)

var few = retention{newest: 3, age: 24 * time.Hour, most: 20, swept: 50}

// makeRun makes the folder of a run that began at a time.
func makeRun(t *testing.T, runs string, began time.Time, files ...string) string {
	t.Helper()
	dir := filepath.Join(runs, NewID(began))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, "lock", "00000001.log") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLogsOfOldRunsAreRemoved(t *testing.T) {
	runs, now := t.TempDir(), time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	old := now.Add(-few.age - time.Hour)
	foreign := filepath.Join(runs, "20200101-000000.000-mine")
	if err := os.MkdirAll(foreign, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "00000001.log"} {
		if err := os.WriteFile(filepath.Join(foreign, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inUse, odd := makeRun(t, runs, old), makeRun(t, runs, old, "notes.txt")
	lock, err := os.Open(filepath.Join(inUse, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	linked := makeRun(t, runs, old)
	if err := os.Symlink("/etc/hostname", filepath.Join(linked, "00000002.log")); err != nil {
		t.Fatal(err)
	}
	elsewhere := makeRun(t, t.TempDir(), old)
	if err := os.Symlink(elsewhere, filepath.Join(runs, NewID(old))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(runs, NewID(old)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gone := []string{makeRun(t, runs, old), makeRun(t, runs, old, "00000001.torn")}
	stays := []string{foreign, elsewhere, inUse, odd, linked, makeRun(t, runs, now.Add(-few.age+time.Hour))}
	for i := range few.newest {
		stays = append(stays, makeRun(t, runs, now.Add(-time.Duration(i)*time.Minute)))
	}
	if err := few.sweep(runs, now); err != nil {
		t.Fatal(err)
	}
	for _, dir := range gone {
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	}
	for _, dir := range stays {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) < 2 {
			t.Errorf("%s has %v: %v", dir, entries, err)
		}
	}
}

// TestFewRunsAreKeptWhateverTheirAge: the last ones are what somebody asks for.
func TestFewRunsAreKeptWhateverTheirAge(t *testing.T) {
	runs, now := t.TempDir(), time.Now()
	for i := range few.newest {
		makeRun(t, runs, now.Add(-10*few.age-time.Duration(i)*time.Second))
	}
	if err := few.sweep(runs, now); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(runs); len(entries) != few.newest {
		t.Errorf("%d are left", len(entries))
	}
}

// TestManyRunsAreTooMany whatever their age.
func TestManyRunsAreTooMany(t *testing.T) {
	runs, now := t.TempDir(), time.Now()
	for i := range few.most {
		if err := os.Mkdir(filepath.Join(runs, fmt.Sprintf("%s-%06x", now.UTC().Format(config.RunTime), i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	oldest := makeRun(t, runs, now.Add(-time.Hour))
	if err := few.sweep(runs, now); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(runs)
	if err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == filepath.Base(oldest) }) || len(entries) != few.most {
		t.Errorf("%d are left, %v", len(entries), err)
	}
}

func TestRunsAreKnownByTheirNames(t *testing.T) {
	if name := NewID(time.Now()); !isRunName(name) {
		t.Errorf("%s is not", name)
	}
	for _, name := range []string{
		"", "20261122-120000.000", "20261122-120000.000-12345", "20261122-120000.000-1234567", "20261122-120000.000-12345G", "20261122-120000.000-ABCDEF",
		"2026112a-120000.000-123456", "20261122_120000.000-123456", "20261122-120000-000-123456", "20261122-120000.00f-123456", "..61122-120000.000-123456",
	} {
		if isRunName(name) {
			t.Errorf("%q is", name)
		}
	}
}

// TestWhatIsNoRunEndsNoSweep has more files and links with the names of old runs than are removed at a time.
func TestWhatIsNoRunEndsNoSweep(t *testing.T) {
	runs, now := t.TempDir(), time.Now()
	for range few.swept + 5 {
		if err := os.WriteFile(filepath.Join(runs, NewID(now.Add(-3*few.age))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := makeRun(t, runs, now.Add(-2*few.age))
	for range few.newest {
		makeRun(t, runs, now)
	}
	if err := few.sweep(runs, now); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(old); err == nil {
		t.Error("an old run is still there")
	}
}

// TestUnsentLogsAreRemovedWithAWord has the state of a sink in the folders of old runs.
func TestUnsentLogsAreRemovedWithAWord(t *testing.T) {
	runs, now := t.TempDir(), time.Now()
	begin := func(back time.Duration, lines int) (dir string) {
		t.Helper()
		dir = filepath.Join(runs, NewID(now.Add(-few.age-back)))
		l, err := audit.Create(dir, audit.Options{Durability: audit.Process, Ephemeral: true, Keys: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		for range lines {
			if _, err := l.Append([]byte(`{"kind":"start"}`)); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(sink.Folder(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sink.Folder(dir), "store.json"), []byte(`{"name":"store","next":2}`), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	sent, unsent := begin(2*time.Hour, 2), begin(time.Hour, 5)
	for range few.newest {
		makeRun(t, runs, now)
	}
	if n := Unsent(runs); n != 2 {
		t.Errorf("%d runs look unsent", n)
	}
	lock, err := os.Open(filepath.Join(unsent, lockName))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if n := Unsent(runs); n != 1 {
		t.Errorf("%d runs look unsent while one goes on", n)
	}
	lock.Close()
	err = few.sweep(runs, now)
	if err == nil || !strings.Contains(err.Error(), filepath.Base(unsent)) || !strings.Contains(err.Error(), "3 records") || strings.Contains(err.Error(), filepath.Base(sent)) {
		t.Errorf("it says %v", err)
	}
	for _, dir := range []string{sent, unsent} {
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	}
}
