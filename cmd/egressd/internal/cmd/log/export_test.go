package log

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/logs/export"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
)

// TestExportJoinsWhatIsFarApart has flows end long after they began, in records that
// do not say where they went. What was read in between has taken the place of the
// records that opened them.
func TestExportJoinsWhatIsFarApart(t *testing.T) {
	const flows = 20_000
	var lines []byte
	seq := 0
	line := func(format string, arguments ...any) {
		lines = fmt.Appendf(lines, `{"v":1,"seq":%d,"time":"2026-11-20T09:00:00.000000Z",`+format+"}\n", append([]any{seq}, arguments...)...)
		seq++
	}
	for i := range flows {
		line(`"kind":"open","flow":"F%05d","sandbox":"ci","via":"connect","dst":{"host":"%s.test","port":443},"decision":{"action":"allow","rule":"r"}`, i, []string{"a", "b"}[i%2])
	}
	for i := range flows {
		line(`"kind":"close","flow":"F%05d","bytes":{"up":1,"down":1},"outcome":"closed"`, i)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), lines, 0o600); err != nil {
		t.Fatal(err)
	}
	log, f, err := (&source.Source{Dir: dir}).Ask([]string{"host:a.test", "up:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	n := 0
	count := func(b []byte, r *record.Record, _ []byte, _ export.Origin) []byte {
		var i int
		if _, err := fmt.Sscanf(r.Flow, "F%d", &i); err != nil || i%2 != 0 {
			t.Fatalf("exported the end of %q, which went elsewhere: %v", r.Flow, err)
		}
		n++
		return b
	}
	var out bytes.Buffer
	if err := log.Export(&out, f, "", count); err != nil || n != flows/2 {
		t.Errorf("%d ends were exported, want %d: %v", n, flows/2, err)
	}
}
