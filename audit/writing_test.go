package audit

import (
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
)

func TestWritingTellsWhoHasTheLogOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	says := func(want bool, when string) {
		t.Helper()
		if got, err := format.Writing(dir); got != want || err != nil {
			t.Errorf("%s: %v, %v", when, got, err)
		}
	}
	says(false, "before there is a log")
	l, err := Create(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	says(true, "while it is open")
	says(true, "asked twice")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	says(false, "after it was closed")
	if l, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	says(true, "opened again")
}
