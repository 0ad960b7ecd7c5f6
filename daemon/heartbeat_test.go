package daemon

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/egressd/egressd/audit/verify"
	"github.com/egressd/egressd/record"
)

// beatsOf returns the heartbeats in the log of dir.
func beatsOf(t *testing.T, dir string) (all []record.Record) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "audit", "00000001.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var r record.Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		if r.Kind == record.KindHeartbeat {
			all = append(all, r)
		}
	}
	return all
}

// TestAnIdleDaemonBeats, and a log that is begun anew says which one it follows, and how long that was.
func TestAnIdleDaemonBeats(t *testing.T) {
	before := beatEvery
	beatEvery = 20 * time.Millisecond
	t.Cleanup(func() { beatEvery = before })
	dir := t.TempDir()
	path := filepath.Join(dir, "egressd.yaml")
	writesSinks(t, dir, "")("")
	serve := func(until func([]record.Record) bool) (origin string, size int64) {
		d, err := New(io.Discard, path, Tailoring{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := d.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(30 * time.Second); !until(beatsOf(t, dir)); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the log has %+v", beatsOf(t, dir))
			}
		}
		origin, _ = d.Log.Origin()
		if err := d.stop(0); err != nil {
			t.Fatal(err)
		}
		return origin, d.Log.State().Written
	}
	first, size := serve(func(all []record.Record) bool { return len(all) >= 3 })
	for _, r := range beatsOf(t, dir) {
		if r.Log.Origin != first || r.Log.Follows != "" || r.Log.Size != r.Seq || r.Decision == nil || len(r.Decision.Rules) != 32 {
			t.Errorf("a heartbeat has %+v %+v", r.Log, r.Decision)
		}
	}
	if got := verify.Origin(filepath.Join(dir, "audit")); got != first {
		t.Errorf("the log is %s", got)
	}
	beatEvery = time.Hour
	if err := os.RemoveAll(filepath.Join(dir, "audit")); err != nil {
		t.Fatal(err)
	}
	second, _ := serve(func(all []record.Record) bool { return len(all) == 1 })
	if r := beatsOf(t, dir)[0]; second == first || r.Log.Follows != first || r.Log.Had != size {
		t.Errorf("%s follows %s of %d records: %+v", second, first, size, r.Log)
	}
}
