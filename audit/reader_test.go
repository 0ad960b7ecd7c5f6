package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

func reader(t *testing.T, dir string, from int64) *Reader {
	t.Helper()
	r, err := NewReader(dir, from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// follow returns the next n lines, however long they take.
func follow(t *testing.T, r *Reader, n int) []string {
	t.Helper()
	var all []string
	for len(all) < n {
		line, err := r.Next()
		if err == io.EOF {
			err = r.Follow(t.Context())
		} else if err == nil {
			all = append(all, string(line))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func atEnd(t *testing.T, r *Reader) {
	t.Helper()
	if line, err := r.Next(); err != io.EOF {
		t.Fatalf("next: %q, %v; want the end", line, err)
	}
}

func TestReaderBeginsAnywhere(t *testing.T) {
	dir := laid(t, filled(t, 10, Options{SegmentBytes: 300})...)
	for from := range int64(12) {
		r := reader(t, dir, from)
		for want := from; want < 10; want++ {
			line, err := r.Next()
			if err != nil || !strings.HasPrefix(string(line), fmt.Sprintf(`{"v":1,"seq":%d,`, want)) {
				t.Fatalf("from %d: %q, %v; want %d", from, line, err, want)
			}
		}
		atEnd(t, r)
	}
	if _, err := NewReader(t.TempDir(), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reader of no log: %v", err)
	}
}

func TestReaderRefusesWhatOpenRefuses(t *testing.T) {
	for name, d := range damages(t) {
		if name == "a segment has much behind it" {
			continue // which a reader passes over, like any torn end
		}
		r, err := NewReader(laid(t, d.segments...), 0)
		for err == nil {
			_, err = r.Next()
		}
		var damage *format.DamageError
		if !errors.As(err, &damage) {
			t.Errorf("%s: the reader ends with %v", name, err)
		}
		if r != nil {
			r.Close()
		}
	}
}

func TestReaderStopsAtATornLineUntilItIsWhole(t *testing.T) {
	whole := string(filled(t, 2, Options{})[0])
	cut := len(whole) - 20
	dir := laid(t, []byte(whole[:cut]))
	r := reader(t, dir, 0)
	if got := follow(t, r, 1); !strings.Contains(got[0], "record0") {
		t.Errorf("first line %s", got)
	}
	atEnd(t, r)
	writeFile(t, format.SegmentPath(dir, 1), []byte(whole))
	if got := follow(t, r, 1); !strings.Contains(got[0], "record1") {
		t.Errorf("second line %s", got)
	}
	atEnd(t, r)
}

func TestFollowSeesEveryLineWhileTheLogRotates(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{SegmentBytes: 2000})
	r := reader(t, dir, 0)
	const n = 2000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range n {
			if _, err := l.Append([]byte(named(fmt.Sprint("record", i)))); err != nil {
				t.Error(err)
			}
		}
	}()
	for i, line := range follow(t, r, n) {
		if !strings.Contains(line, fmt.Sprintf(`"record%d"`, i)) {
			t.Fatalf("line %d is %s", i, line)
		}
	}
	<-done
	atEnd(t, r)
}

func TestReaderWaitsWhileASegmentIsReplaced(t *testing.T) {
	dir := laid(t, filled(t, 1, Options{})[0], nil)
	r := reader(t, dir, 0)
	follow(t, r, 1)
	atEnd(t, r)
	if err := os.Remove(format.SegmentPath(dir, 2)); err != nil {
		t.Fatal(err)
	}
	atEnd(t, r)
	if seq, _, err := firstLine(format.SegmentPath(dir, 2)); seq != -1 || err != nil {
		t.Errorf("a segment that is being replaced begins with %d, %v", seq, err)
	}
}

func TestFollowLooksAFewTimesASecondAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := create(t, dir, Options{})
		r := reader(t, dir, 0)
		start := time.Now()
		go func() {
			time.Sleep(time.Hour)
			appendTo(t, l, named("late"))
		}()
		for range 2 { // the second has it already
			if err := r.Follow(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if waited := time.Since(start); waited > time.Hour+pollInterval {
			t.Errorf("saw the line after %v", waited)
		}
		follow(t, r, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Follow(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("follow: %v", err)
		}
		closeLog(t, l)
	})
}
