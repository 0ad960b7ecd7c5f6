package audit

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// TestFollowEndsWhereTheLogIsGone has what a reader waits at the end of disappear: it
// says so, and does not wait for ever.
func TestFollowEndsWhereTheLogIsGone(t *testing.T) {
	for name, row := range map[string]struct {
		do   func(dir, path string) error
		want string
	}{
		"the segment is removed": {func(_, path string) error { return os.Remove(path) }, "removed while"},
		"the log is removed":     {func(dir, _ string) error { return os.RemoveAll(dir) }, "removed while"},
		"the log is moved away":  {func(dir, _ string) error { return os.Rename(dir, dir+".aside") }, "removed while"},
		"it is emptied":          {func(_, path string) error { return os.Truncate(path, 0) }, "shorter"},
		"a byte is cut off":      {func(_, path string) error { return os.Truncate(path, size(path)-1) }, "shorter"},
		"it is another file": {func(_, path string) error {
			return errors.Join(os.Rename(path, path+".aside"), os.WriteFile(path, make([]byte, 1<<20), 0o600))
		}, "another file"},
	} {
		dir := laid(t, filled(t, 3, Options{})[0])
		r := reader(t, dir, 0)
		follow(t, r, 3)
		atEnd(t, r)
		if err := row.do(dir, format.SegmentPath(dir, 1)); err != nil {
			t.Fatal(err)
		}
		var damage *format.DamageError
		if err := r.Follow(t.Context()); !errors.As(err, &damage) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: following ends with %v, want %q", name, err, row.want)
		}
	}
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return -1
	}
	return info.Size()
}

// TestAReaderAtTheEndSeesASegmentRemoved has retention remove what a reader is at the
// end of, after another segment was begun.
func TestAReaderAtTheEndSeesASegmentRemoved(t *testing.T) {
	segments := filled(t, 10, Options{SegmentBytes: 300})
	dir := laid(t, segments[0])
	r := reader(t, dir, 0)
	n := strings.Count(string(segments[0]), "\n")
	follow(t, r, n)
	atEnd(t, r)
	writeFile(t, format.SegmentPath(dir, 2), segments[1])
	writeFile(t, format.TreePath(dir, 1), nil)
	if err := os.Remove(format.SegmentPath(dir, 1)); err != nil {
		t.Fatal(err)
	}
	follow(t, r, strings.Count(string(segments[1]), "\n"))
	atEnd(t, r)
}

// TestAReaderPassesOverNoSegment has a segment begin with a number that an earlier one
// begins with: who reads from a number on would not see the earlier one.
func TestAReaderPassesOverNoSegment(t *testing.T) {
	segments := filled(t, 10, Options{SegmentBytes: 300})
	for name, all := range map[string][][]byte{"twice": {segments[0], segments[0]}, "backwards": {segments[1], segments[0]}} {
		var damage *format.DamageError
		r, err := NewReader(laid(t, all...), 0)
		for err == nil {
			_, err = r.Next()
		}
		if !errors.As(err, &damage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHolesAreNotRead has a segment end with a hole of 8 TiB: to read it would take an
// hour.
func TestHolesAreNotRead(t *testing.T) {
	const end = 8 << 40
	for _, behind := range []string{"", "x"} { // at the very end of the hole
		s := signed(t, Options{SegmentBytes: 1 << 20})
		f, err := os.OpenFile(format.SegmentPath(s.dir, 1), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(end-int64(len(behind))), writeAt(f, behind, end-int64(len(behind))), f.Close()); err != nil {
			t.Fatal(err)
		}
		r := reader(t, s.dir, 0)
		follow(t, r, int(s.records))
		atEnd(t, r)
		if got := s.verify(t); got.Code != verify.TornTail && got.Code != verify.Tampered || got.Records != s.records {
			t.Errorf("%+v", got)
		}
	}
}

func writeAt(f *os.File, text string, at int64) error {
	_, err := f.WriteAt([]byte(text), at)
	return err
}
