package source

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTheFileOfARunNamesNoOtherLog reads a run whose file is that of another one, as in a copy.
func TestTheFileOfARunNamesNoOtherLog(t *testing.T) {
	folder := t.TempDir()
	for _, row := range []struct{ file, log string }{
		{`{"run": "other", "log": "/runs/other"}`, folder},
		{`{"run": "other", "log": "/audit", "daemon": true}`, "/audit"},
	} {
		if err := os.WriteFile(filepath.Join(folder, RunFile), []byte(row.file), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := ReadRun(folder); r.ID != filepath.Base(folder) || r.Log != row.log {
			t.Errorf("%s: run %s with the log %s", row.file, r.ID, r.Log)
		}
	}
}
