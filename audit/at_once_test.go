package audit

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestALogSaysWhenAnAppendMayTakeItsTime: where another one is under way, and where the segment ends.
func TestALogSaysWhenAnAppendMayTakeItsTime(t *testing.T) {
	l, err := Create(filepath.Join(t.TempDir(), "log"), Options{SegmentBytes: 2 * roomMost})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if !l.WritesAtOnce() {
		t.Error("nothing is under way, and it would wait")
	}
	l.writing.Lock()
	if l.WritesAtOnce() {
		t.Error("another append is under way")
	}
	l.writing.Unlock()
	record := []byte(`{"a":"` + strings.Repeat("a", 4<<10) + `"}`)
	for l.segment.number == 1 {
		if ends := l.end.Offset > 0 && l.end.Offset+roomMost > l.options.SegmentBytes; l.WritesAtOnce() == ends {
			t.Fatalf("at byte %d of %d it says %v", l.end.Offset, l.options.SegmentBytes, !ends)
		}
		if _, err := l.Append(record); err != nil {
			t.Fatal(err)
		}
	}
}
