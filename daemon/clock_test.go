package daemon

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
)

// TestAClockThatWasSetIsRecorded, and said; other troubles are said.
func TestAClockThatWasSetIsRecorded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	writesSinks(t, dir, "")("")
	var talk bytes.Buffer
	d, err := New(&talk, path, Tailoring{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	d.audit.troubled(errors.New("of another kind"))
	d.audit.troubled(&audit.ClockError{By: 100 * time.Hour}) // as when the log is opened
	for range 2 * clockNotes {
		d.audit.troubled(&audit.ClockError{By: -time.Hour}) // nobody waits
	}
	d.audit.messages.writing.Wait()
	for _, want := range []string{"error: of another kind\n", "set forward by 100h0m0s"} {
		if !strings.Contains(talk.String(), want) {
			t.Errorf("said was %s", talk.String())
		}
	}
	d.Talk = io.Discard
	if err := d.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(dir, "audit", "00000001.log"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), `"kind":"recovery"`) && strings.Contains(string(text), "set forward by 100h0m0s") && strings.Count(string(text), "set back by 1h0m0s") == clockNotes-1 {
			if strings.Contains(string(text), "of another kind") {
				t.Error("another trouble is recorded")
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log has %s", text)
		}
	}
	if err := d.stop(0); err != nil {
		t.Fatal(err)
	}
}
