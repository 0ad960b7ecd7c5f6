package audit

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// TestABriefOpenOfALogWithGaps: a log without one of its files is refused, and then nothing is written.
func TestABriefOpenOfALogWithGaps(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 200})
	n := last(numbersOf(t, s.dir))
	for number := 1; number <= n; number++ {
		for _, path := range []string{format.SegmentPath(s.dir, number), format.NotePath(s.dir, number)} {
			content := readFile(t, path)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			before := s.files(t)
			l, err := Open(s.dir, Options{Brief: true})
			if err == nil {
				closeLog(t, l)
			} else if now := s.files(t); !maps.EqualFunc(before, now, bytes.Equal) {
				t.Errorf("without %s it is refused, and changed: %v", filepath.Base(path), err)
			}
			if err == nil && path != format.NotePath(s.dir, n) {
				t.Errorf("without %s it is opened", filepath.Base(path))
			}
			writeFile(t, path, content)
			if r := s.verify(t); r.Code != verify.Good {
				t.Fatalf("without %s (%v) and with it again: %+v", filepath.Base(path), err, r)
			}
		}
	}
}
