package story

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/logs/source"
)

// TestAnIDIsFoundInEveryLog looks for ids of the daemon's log and of two runs, and for one of none.
func TestAnIDIsFoundInEveryLog(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	write := func(folder, flow string) {
		dir := filepath.Join(state, "egressd", folder)
		if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		log, err := audit.Create(dir, audit.Options{Durability: audit.Process})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		r := opened(flow, "evil.test", "deny")
		text, err := json.Marshal(map[string]any{"kind": r.Kind, "flow": r.Flow, "dst": r.Dst, "decision": r.Decision})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.Append(text); err != nil {
			t.Fatal(err)
		}
	}
	find := func(id, run string) {
		t.Helper()
		s := source.Source{}
		found, log, err := FindAnywhere(&s, id)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		log.Close()
		if found.Flow != id || s.Run != run {
			t.Errorf("%s: found %s in %q", id, found.Flow, s.Run)
		}
	}
	write("runs/20260101-000000.000-aaaaaa", "ONE")
	find("ONE", "20260101-000000.000-aaaaaa") // without any log of a daemon
	write("runs/20260102-000000.000-aaaaaa", "TWO")
	write("audit", "THREE")
	find("ONE", "20260101-000000.000-aaaaaa")
	find("TWO", "20260102-000000.000-aaaaaa")
	find("THREE", "")
	if _, _, err := FindAnywhere(&source.Source{}, "FOUR"); err == nil {
		t.Error("an id of no log is found")
	}
	if _, _, err := FindAnywhere(&source.Source{Run: "last"}, "ONE"); err == nil {
		t.Error("another run than the named one is read")
	}
}
