package audit

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// TestALogIsReadWhileItIsPacked has a log verified, and read from its first record on, again
// and again while segments are removed and what is left of them is put together: it is good
// at each moment, and no reader finds a gap but at its own beginning. Of all segments but two
// at most three go in each round, which is one less than Verify begins anew for.
func TestALogIsReadWhileItIsPacked(t *testing.T) {
	dir := filepath.Join(inMemory(t), "audit")
	l := create(t, dir, Options{SegmentBytes: 300, Retain: Retain{Segments: 2}, Trouble: func(err error) { t.Error(err) }})
	_, key := l.Origin()
	var over atomic.Bool
	written, tokens := make(chan struct{}), make(chan struct{}, 2)
	go func() {
		defer close(written)
		defer over.Store(true)
		for i := range 400 {
			if i%5 == 0 { // in which a segment ends, or two in two
				<-tokens
			}
			if _, err := l.Append([]byte(named(fmt.Sprint("x", i)))); err != nil {
				t.Error(err)
			}
			if i%7 == 0 {
				if _, err := l.Checkpoint(); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	rounds := 0
	for ; !over.Load(); rounds++ {
		for len(tokens) < cap(tokens) {
			tokens <- struct{}{}
		}
		if r, err := verify.Log(dir, key, nil); err != nil || r.Code != verify.Good {
			t.Errorf("round %d: %+v, %v", rounds, r, err)
		}
		readOn(t, dir)
	}
	<-written
	closeLog(t, l)
	if r, err := verify.Log(dir, key, nil); err != nil || r.Code != verify.Good || r.Records != 400 || r.Removed < 50 {
		t.Errorf("%+v, %v", r, err)
	}
	t.Logf("verified and read %d times", rounds)
}

// readOn reads all that there is, once.
func readOn(t *testing.T, dir string) {
	t.Helper()
	r, err := NewReader(dir, 0)
	if err != nil {
		t.Errorf("a reader: %v", err)
		return
	}
	defer r.Close()
	for {
		_, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Errorf("a reader: %v", err)
			return
		}
	}
}

// TestAReaderIsOvertakenByPacking begins before its segment and those after it were removed,
// and nothing but a block is left of them.
func TestAReaderIsOvertakenByPacking(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 300})
	r := reader(t, s.dir, 0)
	first, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	if seq, err := format.CheckLine(first); err != nil || seq != 0 {
		t.Fatal(seq, err)
	}
	l := open(t, s.dir, Options{SegmentBytes: 300, Retain: Retain{Segments: 2}})
	l.signing.Lock()
	err = l.past.Read()
	n := len(l.past.Blocks)
	l.signing.Unlock()
	if err != nil || n < 3 {
		t.Fatalf("%d blocks, %v", n, err)
	}
	last := int64(0)
	for {
		line, err := r.Next()
		if err != nil {
			break
		}
		if last, err = format.CheckLine(line); err != nil {
			t.Fatal(err)
		}
	}
	if last != 29 {
		t.Errorf("the reader ends with record %d", last)
	}
}

// TestRetentionGoesOnAfterACrashBeforeTheFilesOfABlockWereRemoved: that block is written
// again, and those behind it are found.
func TestRetentionGoesOnAfterACrashBeforeTheFilesOfABlockWereRemoved(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 300})
	var troubles []error
	o := Options{SegmentBytes: 300, Retain: Retain{Segments: 2}, Trouble: func(err error) { troubles = append(troubles, err) }}
	closeLog(t, open(t, s.dir, o))
	r := &format.Pruned{Dir: s.dir}
	if err := r.Read(); err != nil || len(r.Blocks) == 0 {
		t.Fatalf("%d blocks, %v", len(r.Blocks), err)
	}
	text, err := os.ReadFile(format.RemovedPath(s.dir))
	if err != nil {
		t.Fatal(err)
	}
	last := len(r.Blocks)
	b := r.Blocks[last-1]
	for path, part := range map[string][]byte{format.NotePath(s.dir, last): text[b.At : b.At+b.Notes], format.TreePath(s.dir, last): text[b.At+b.Notes : b.End()]} {
		if err := os.WriteFile(path, part, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, s.dir, o)
	for i := range 60 {
		appendTo(t, l, named(fmt.Sprint("later", i)))
		if i%5 == 0 {
			if _, err := l.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeLog(t, l)
	if len(troubles) > 0 {
		t.Errorf("%d troubles, the first: %v", len(troubles), troubles[0])
	}
}
