package source

import (
	"syscall"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/record"
)

// TestCompletionWaitsForNoPipe has a pipe in the log, at which nobody writes.
func TestCompletionWaitsForNoPipe(t *testing.T) {
	dir := t.TempDir() + "/audit"
	log, err := audit.Create(dir, audit.Options{Durability: audit.Process})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append([]byte(`{"kind":"start","note":"started"}`)); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(dir+"/00000002.log", 0o600); err != nil {
		t.Fatal(err)
	}
	seen := 0
	(&Source{Dir: dir}).recent(func(*record.Record) { seen++ })
	if seen != 1 {
		t.Errorf("%d records were seen, want 1", seen)
	}
}
