//go:build linux

package audit

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// removed is how many segments retention has removed.
func removed(t *testing.T, dir string) int {
	t.Helper()
	all, err := format.ListFiles(dir)
	past := &format.Pruned{Dir: dir}
	if err := errors.Join(err, past.Read()); err != nil {
		t.Fatal(err)
	}
	n := len(past.Blocks)
	for _, number := range all.Trees {
		if number > n {
			n++
		}
	}
	return n
}

func TestWhatIsLeftIsProvable(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 400, Retain: Retain{Segments: 2}})
	if n := removed(t, s.dir); n < 3 || len(numbersOf(t, s.dir)) != 2 {
		t.Fatalf("%d segments were removed, %v are left", n, numbersOf(t, s.dir))
	}
	r := s.verify(t, s.anchors...)
	if r.Code != verify.Good || r.Records != 30 || r.Unvouched != 0 || r.Removed != removed(t, s.dir) {
		t.Errorf("%+v", r)
	}
	first := reader(t, s.dir, 0)
	line, err := first.Next()
	if err != nil {
		t.Fatal(err)
	}
	seq, err := format.CheckLine(line)
	if err != nil || seq == 0 {
		t.Errorf("the reader begins with %d, %v", seq, err)
	}
	for at := seq; at < 30; at++ {
		p, err := verify.Prove(s.dir, s.key, at)
		if err != nil {
			t.Fatal(err)
		}
		if code, err := p.Check(s.key); code != verify.Good {
			t.Errorf("record %d: %v", at, err)
		}
	}
	if _, err := verify.Prove(s.dir, s.key, seq-1); err == nil {
		t.Error("a record that was removed is proved")
	}
	l := open(t, s.dir, Options{Retain: Retain{Segments: 2}})
	if seq := appendTo(t, l, named("next")); seq != 30 {
		t.Errorf("goes on with %d", seq)
	}
	closeLog(t, l)
	if r := s.verify(t, s.anchors...); r.Code != verify.Good {
		t.Errorf("opened again: %+v", r)
	}
}

// pieces are the sizes of what was written.
type pieces []int

func (p *pieces) Write(b []byte) (int, error) {
	*p = append(*p, len(b))
	return len(b), nil
}

// TestATreeIsWrittenAsItIsMade has a segment with a checkpoint for each record, as where there
// is one a second: its tree grows with them, and what is held of it does not.
func TestATreeIsWrittenAsItIsMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l := create(t, dir, Options{})
	for range 200 {
		appendTo(t, l, named("record"))
		if _, err := l.Checkpoint(); err != nil {
			t.Fatal(err)
		}
	}
	closeLog(t, l)
	var written pieces
	if err := writeSpans(&written, &format.Pruned{Dir: dir}, 1); err != nil {
		t.Fatal(err)
	}
	all := 0
	for _, n := range written {
		all += n
	}
	if most := slices.Max(written); all < 2*most {
		t.Errorf("of %d bytes %d were written at a time", all, most)
	}
}

// TestARemovalThatFailsLeavesTheSegment has it end in the middle of the tree.
func TestARemovalThatFailsLeavesTheSegment(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 400})
	before := s.files(t)
	cut := before["00000002.log"]
	if err := os.WriteFile(format.SegmentPath(s.dir, 2), cut[:len(cut)/2], format.FileRW); err != nil {
		t.Fatal(err)
	}
	if err := removeSegment(&format.Pruned{Dir: s.dir}, 2); err == nil {
		t.Fatal("a segment was removed that is cut")
	}
	before["00000002.log"] = cut[:len(cut)/2]
	if after := s.files(t); !maps.EqualFunc(before, after, bytes.Equal) {
		t.Errorf("there is %v, and was %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
}

// TestEveryBitOfWhatIsLeft flips each bit of the trees.
func TestEveryBitOfWhatIsLeft(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 1 << 10, Retain: Retain{Segments: 2}})
	unpack(t, s.dir)
	path := format.TreePath(s.dir, 1)
	content := readFile(t, path)
	for bit := range 8 * len(content) {
		poke(t, path, bit/8, content[bit/8]^1<<(bit%8))
		if r := s.verify(t); r.Code != verify.Tampered {
			t.Fatalf("bit %d flipped: %+v", bit, r)
		}
		poke(t, path, bit/8, content[bit/8])
	}
	for size := range content {
		writeFile(t, path, content[:size])
		if r := s.verify(t); r.Code != verify.Tampered {
			t.Fatalf("cut at %d: %+v", size, r)
		}
	}
}

func TestRetainBySizeAndByAge(t *testing.T) {
	for name, row := range map[string]struct {
		retain Retain
		after  time.Duration
		least  int
		most   int
	}{
		"all":           {Retain{}, 0, 0, 0},
		"much":          {Retain{Bytes: 1 << 20}, 0, 0, 0},
		"a little":      {Retain{Bytes: 1000}, 0, 4, 10},
		"young":         {Retain{Age: time.Hour}, 10 * time.Minute, 0, 0},
		"not very old":  {Retain{Age: time.Hour}, 50 * time.Minute, 1, 60},
		"what is first": {Retain{Segments: 100, Age: time.Hour}, 50 * time.Minute, 1, 60},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "audit")
				l := create(t, dir, Options{SegmentBytes: 300, Retain: row.retain, clocks: ownClocks, Trouble: func(err error) { t.Error(err) }})
				_, key := l.Origin()
				for range 4 {
					for range 10 {
						appendTo(t, l, named("x"))
						synctest.Wait()
					}
					time.Sleep(row.after)
				}
				closeLog(t, l)
				if n := removed(t, dir); n < row.least || n > row.most {
					t.Errorf("%d segments were removed, want %d to %d", n, row.least, row.most)
				}
				if r, err := verify.Log(dir, key, nil); err != nil || r.Code != verify.Good || r.Records != 40 {
					t.Errorf("%+v, %v", r, err)
				}
			})
		})
	}
}

// TestWhatIsDamagedIsNotRemoved: it is evidence.
func TestWhatIsDamagedIsNotRemoved(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 400})
	path := format.SegmentPath(s.dir, 1)
	changed := bytes.Replace(readFile(t, path), []byte("record1"), []byte("record9"), 1)
	writeFile(t, path, changed)
	var trouble error
	l := open(t, s.dir, Options{SegmentBytes: 400, Retain: Retain{Segments: 2}, Trouble: func(err error) { trouble = err }})
	appendTo(t, l, named("x"))
	closeLog(t, l)
	var damage *format.DamageError
	if !errors.As(trouble, &damage) || !bytes.Equal(readFile(t, path), changed) || removed(t, s.dir) != 0 {
		t.Errorf("trouble %v, %d segments removed", trouble, removed(t, s.dir))
	}
}

// TestAReaderIsOvertakenByRetention goes on where the log now begins.
func TestAReaderIsOvertakenByRetention(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 400})
	r := reader(t, s.dir, 0)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	for number := range 3 {
		if err := removeSegment(&format.Pruned{Dir: s.dir}, number+1); err != nil {
			t.Fatal(err)
		}
	}
	var last int64
	for range 30 {
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
	if err := os.Remove(format.TreePath(s.dir, 2)); err != nil {
		t.Fatal(err)
	}
	var damage *format.DamageError
	if _, err := NewReader(s.dir, 0); !errors.As(err, &damage) {
		t.Errorf("a reader of a log that misses a part: %v", err)
	}
}
