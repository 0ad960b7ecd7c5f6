package runs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit"
)

// An indexedRun is the index of runs, held for one that has just begun.
type indexedRun struct {
	*Index
	log     *audit.Log // of the run
	segment string     // of the index
	refused error      // to hold it
}

func newIndexedRun(t *testing.T, before func(segment string)) *indexedRun {
	t.Helper()
	dir := t.TempDir()
	x := &Index{Dir: filepath.Join(dir, "index"), Keys: filepath.Join(dir, "keys"), Run: "earlier"}
	l, err := audit.Create(filepath.Join(dir, "log"), audit.Options{Keys: x.Keys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := x.Vouch("a.test", "key"); err != nil { // so that there is an index
		t.Fatal(err)
	}
	x = &Index{Dir: x.Dir, Keys: x.Keys, Run: "this"}
	r := &indexedRun{Index: x, log: l, segment: filepath.Join(x.Dir, "00000001.log")}
	before(r.segment)
	x.Hold()
	x.turn.Lock() // until it is opened, or is not
	defer x.turn.Unlock()
	r.refused = x.failed
	return r
}

// vouched counts the records of the index that vouch for the run.
func (r *indexedRun) vouched(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(r.segment)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(text), `"kind":"run","run":"this"`)
}

func TestTheIndexVouchesForARunThatLasts(t *testing.T) {
	r := newIndexedRun(t, func(string) {})
	if err := r.KeepGoing(r.log); err != nil || r.vouched(t) != 1 {
		t.Errorf("%d records, %v", r.vouched(t), err)
	}
	if r.held.Load() {
		t.Error("the index is held on")
	}
}

// TestTheIndexIsAskedAgain has an index that cannot be opened when the run begins, and can
// a moment later.
func TestTheIndexIsAskedAgain(t *testing.T) {
	var whole []byte
	r := newIndexedRun(t, func(segment string) {
		var err error
		if whole, err = os.ReadFile(segment); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(segment, 10); err != nil {
			t.Fatal(err)
		}
	})
	if r.refused == nil {
		t.Fatal("it was opened")
	}
	if err := os.WriteFile(r.segment, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.KeepGoing(r.log); err != nil || r.vouched(t) != 1 {
		t.Errorf("%d records, %v", r.vouched(t), err)
	}
	if err := r.end("a checkpoint"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(r.segment); err != nil || !strings.Contains(string(text), `"kind":"run-end","run":"this"`) {
		t.Errorf("the index has no end of the run: %s, %v", text, err)
	}
}

// TestAnIndexThatIsLostVouchesForNothing takes the file of the index away while it is
// held: what was written to it is nowhere.
func TestAnIndexThatIsLostVouchesForNothing(t *testing.T) {
	r := newIndexedRun(t, func(string) {})
	if err := os.Remove(r.segment); err != nil {
		t.Fatal(err)
	}
	if err := r.KeepGoing(r.log); err == nil && r.vouched(t) == 0 {
		t.Error("it is taken for done")
	}
}
