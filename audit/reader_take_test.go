package audit

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
)

// taken returns the lines that Take reads, and the error that ends them.
func taken(r *Reader, size int) (lines []string, err error) {
	for buffer := make([]byte, size); ; {
		b, err := r.Take(buffer)
		if err != nil {
			return lines, err
		}
		for err == nil {
			var line []byte
			if line, err = b.Next(); err == nil {
				lines = append(lines, string(line))
			}
		}
		if err != io.EOF {
			return lines, err
		}
	}
}

// nexts is taken by Next.
func nexts(r *Reader) (lines []string, err error) {
	for {
		line, err := r.Next()
		if err != nil {
			return lines, err
		}
		lines = append(lines, string(line))
	}
}

// TestTakeReadsWhatNextReads compares both on logs that are whole, torn, or changed, with buffers of all sizes.
func TestTakeReadsWhatNextReads(t *testing.T) {
	whole := filled(t, 40, Options{SegmentBytes: 700})
	last := len(whole) - 1
	with := func(number int, change func([]byte) []byte) [][]byte {
		all := make([][]byte, len(whole))
		for i, content := range whole {
			all[i] = bytes.Clone(content)
		}
		all[number] = change(all[number])
		return all
	}
	long := bytes.Repeat([]byte("x"), format.MaxLine+100)
	for name, segments := range map[string][][]byte{
		"whole":                    whole,
		"torn":                     with(last, func(b []byte) []byte { return append(b, `{"v":1,"seq":40`...) }),
		"torn, with zeros":         with(last, func(b []byte) []byte { return append(b, make([]byte, 100_000)...) }),
		"a byte changed":           with(1, func(b []byte) []byte { b[bytes.LastIndex(b, []byte(`"seq":`))+len(`"seq":`)]++; return b }),
		"a line removed":           with(1, func(b []byte) []byte { return b[bytes.IndexByte(b, '\n')+1:] }),
		"a byte that is no text":   with(2, func(b []byte) []byte { b[len(b)/2] = 7; return b }),
		"a line too long":          with(2, func(b []byte) []byte { return append(append(b, long...), '\n') }),
		"a line too long, at last": with(last, func(b []byte) []byte { return append(append(b, long...), '\n') }),
		"an empty segment":         append(with(0, bytes.Clone), nil),
	} {
		dir := laid(t, segments...)
		for from := range int64(41) {
			want, wantErr := nexts(reader(t, dir, from))
			for _, size := range []int{1, 100, 701, 1 << 16} {
				got, err := taken(reader(t, dir, from), size)
				if len(got) != len(want) || err.Error() != wantErr.Error() {
					t.Fatalf("%s, from %d, %d bytes: %d lines, %v; want %d, %v", name, from, size, len(got), err, len(want), wantErr)
				}
				for i := range want {
					if got[i] != want[i] {
						t.Fatalf("%s: line %d is %s, want %s", name, i, got[i], want[i])
					}
				}
			}
		}
	}
}

// The lines that Next has left, and the one that Follow found, are those that Take reads.
func TestTakeGoesOnWhereNextAndFollowEnded(t *testing.T) {
	l := create(t, t.TempDir()+"/audit", Options{})
	for _, n := range []string{"a", "b", "c", "d"} {
		appendTo(t, l, named(n))
	}
	r := reader(t, l.dir, 0)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if err := r.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines, err := taken(r, 1000)
	if err != io.EOF || len(lines) != 3 || !bytes.Contains([]byte(lines[0]), []byte(`"b"`)) || !bytes.Contains([]byte(lines[2]), []byte(`"d"`)) {
		t.Errorf("%q, %v", lines, err)
	}
}

func TestFromTimeIsTheSegmentInWhichATimeIs(t *testing.T) {
	line := func(seq, minute string) []byte {
		return []byte(`{"v":1,"seq":` + seq + `,"time":"2026-11-20T09:` + minute + `:00.000000Z","kind":"start"}` + "\n")
	}
	dir := laid(t, append(line("0", "10"), line("1", "19")...), line("2", "20"), line("3", "30"), nil)
	for minute, want := range map[int]int64{0: 0, 10: 0, 15: 0, 20: 0, 21: 2, 30: 2, 31: 3, 59: 3} {
		from, err := FromTime(dir, time.Date(2026, 11, 20, 9, minute, 0, 0, time.UTC))
		if err != nil || from != want {
			t.Errorf("minute %d: from %d, %v; want %d", minute, from, err, want)
		}
	}
	if from, err := FromTime(dir, time.Time{}); err != nil || from != 0 {
		t.Errorf("the zero time: from %d, %v", from, err)
	}
	if err := os.WriteFile(format.SegmentPath(dir, 2), []byte("no line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var damage *DamageError
	if _, err := FromTime(dir, time.Now()); !errors.As(err, &damage) {
		t.Errorf("with damage: %v", err)
	}
}
