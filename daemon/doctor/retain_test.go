package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/config"
)

// TestDoctorSaysWhatTheLogMayTake reads policies that bound the log and ones that do not.
func TestDoctorSaysWhatTheLogMayTake(t *testing.T) {
	for text, want := range map[string]string{
		"version: 1\naudit: {dir: log}\n":                                        " of it, since audit.retain is not set",
		"version: 1\naudit: {dir: log, retain: all}\n":                           "log, all of it",
		"version: 1\naudit: {dir: log, retain: {bytes: 2000000, segments: 9}}\n": "log, at most 2.0 MB of it",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "egressd.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if s := logFinding(c); s.Check != "log" || !strings.Contains(s.Says, want) {
			t.Errorf("doctor says %+v, want %q", s, want)
		}
	}
}
