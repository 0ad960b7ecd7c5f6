package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/policy/file"
)

// TestTheLogIsBounded has policies that say what of the log is kept, and one that does not.
func TestTheLogIsBounded(t *testing.T) {
	const huge = 20 << 30 // sparse
	for name, row := range map[string]struct {
		text, segment string
		least, most   int64
		byDefault     bool
		want          file.Retain // but for the bytes of the default
	}{
		"nothing said":      {"version: 1\naudit: {dir: log}\n", "", 4 * 64 << 20, maxDefaultRetain, true, file.Retain{}},
		"smaller segments":  {"version: 1\naudit: {dir: log, segment_bytes: 65536}\n", "", 4 * 65536, maxDefaultRetain, true, file.Retain{}},
		"larger already":    {"version: 1\naudit: {dir: log}\n", "00000001.log", huge, huge, true, file.Retain{}},
		"all":               {"version: 1\naudit: {dir: log, retain: all}\n", "00000001.log", 0, 0, false, file.Retain{All: true}},
		"a number of files": {"version: 1\naudit: {dir: log, retain: {segments: 3}}\n", "", 0, 0, false, file.Retain{Segments: 3}},
		"a number of bytes": {"version: 1\naudit: {dir: log, retain: {bytes: 2000000}}\n", "00000001.log", 2000000, 2000000, false, file.Retain{}},
		"with a sink":       {"version: 1\naudit: {dir: log, sinks: [{name: s, type: file, path: /tmp/s}]}\n", "", 4 * 64 << 20, maxDefaultRetain, true, file.Retain{}},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "egressd.yaml")
		if err := os.WriteFile(path, []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if row.segment != "" {
			at := filepath.Join(dir, "log", row.segment)
			if err := os.Mkdir(filepath.Dir(at), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(at, huge); err != nil {
				t.Fatal(err)
			}
		}
		c, err := Load(path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, byDefault, err := c.Retained()
		if err != nil || got.Bytes < row.least || got.Bytes > row.most || byDefault != row.byDefault {
			t.Errorf("%s: at most %d bytes are kept, want %d to %d; by default %t: %v", name, got.Bytes, row.least, row.most, byDefault, err)
		}
		if len(c.File.Audit.Sinks) > 0 && got.Sinks.Bytes != 2*got.Bytes {
			t.Errorf("%s: %d bytes are kept for sinks", name, got.Sinks.Bytes)
		}
		if got.All != row.want.All || got.Segments != row.want.Segments {
			t.Errorf("%s: kept is %+v", name, got)
		}
	}
}
