package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
)

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// filled makes a log of n records and returns the content of its segments.
func filled(t *testing.T, n int, o Options) [][]byte {
	t.Helper()
	dir := t.TempDir()
	l := create(t, dir, o)
	for i := range n {
		appendTo(t, l, named(fmt.Sprint("record", i)))
	}
	closeLog(t, l)
	paths, err := format.Segments(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for _, path := range paths {
		all = append(all, readFile(t, path))
	}
	return all
}

// laid writes segments into a directory.
func laid(t *testing.T, segments ...[]byte) string {
	t.Helper()
	dir := t.TempDir()
	for i, content := range segments {
		writeFile(t, format.SegmentPath(dir, i+1), content)
	}
	return dir
}

func hexSum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func TestATornLastLineIsMovedWhereverItIsTorn(t *testing.T) {
	covers(t, "AU-12")
	whole := filled(t, 3, Options{unsigned: true})[0]
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for cut := last + 1; cut < len(whole); cut++ {
		dir := laid(t, whole[:cut])
		l := open(t, dir, Options{unsigned: true})
		want := format.Torn{Segment: "00000001.log", Offset: int64(last), Bytes: int64(cut - last), SHA256: hexSum(whole[last:cut]), Moved: true}
		if got := l.Recovered(); len(got) != 1 || got[0] != want {
			t.Fatalf("cut at %d: recovered %+v, want %+v", cut, got, want)
		}
		if got := l.Recovered(); got != nil {
			t.Errorf("reported twice: %+v", got)
		}
		if got := readFile(t, filepath.Join(dir, "00000001.torn")); !bytes.Equal(got, whole[last:cut]) {
			t.Fatalf("cut at %d: .torn holds %q", cut, got)
		}
		appendTo(t, l, named("recovery"))
		closeLog(t, l)
		if got := fmt.Sprint(names(t, dir)); got != "[record0 record1 recovery]" {
			t.Fatalf("cut at %d: the log holds %s", cut, got)
		}
	}
	l := open(t, laid(t, whole[:last]), Options{unsigned: true})
	if got := l.Recovered(); got != nil {
		t.Errorf("cut between two lines: recovered %+v", got)
	}
}

func TestTornLinesAreKeptOneAfterTheOther(t *testing.T) {
	whole := filled(t, 1, Options{unsigned: true})[0]
	dir := laid(t, append(bytes.Clone(whole), "first"...))
	for _, next := range []string{"second", ""} {
		closeLog(t, open(t, dir, Options{unsigned: true}))
		f, err := os.OpenFile(format.SegmentPath(dir, 1), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(next)
		f.Close()
	}
	closeLog(t, open(t, dir, Options{unsigned: true}))
	if got := string(readFile(t, filepath.Join(dir, "00000001.torn"))); got != "firstsecond" {
		t.Errorf(".torn holds %q, want both", got)
	}
}

func TestTornEndsThatAreNotShort(t *testing.T) {
	whole := filled(t, 2, Options{unsigned: true})[0]
	for name, torn := range map[string][]byte{
		"zeros that a file system left": make([]byte, 300<<10),
		"exactly a buffer":              bytes.Repeat([]byte("x"), 8*(format.MaxLine+1)),
		"a line without its newline":    whole[:bytes.IndexByte(whole, '\n')],
	} {
		dir := laid(t, append(bytes.Clone(whole), torn...))
		if got := open(t, dir, Options{unsigned: true}).Recovered(); len(got) != 1 || got[0].Bytes != int64(len(torn)) {
			t.Errorf("%s: recovered %+v, want %d bytes", name, got, len(torn))
		}
		if got := readFile(t, format.SegmentPath(dir, 1)); !bytes.Equal(got, whole) {
			t.Errorf("%s: %d bytes stay, want %d", name, len(got), len(whole))
		}
	}
}

func TestWhatACrashOfRotationLeaves(t *testing.T) {
	segments := filled(t, 10, Options{SegmentBytes: 300})
	n := len(segments)
	for name, row := range map[string]struct {
		segments [][]byte
		next     int64
	}{
		"a last segment that is empty":          {append(segments[:n:n], nil), 10},
		"a last segment with a torn line alone": {append(segments[:n:n], []byte(`{"v":1,"se`)), 10},
		"a torn line before the last segment":   {append([][]byte{append(bytes.Clone(segments[0]), `{"v":1`...)}, segments[1:]...), 10},
		"a first segment that is empty":         {[][]byte{nil}, 0},
	} {
		dir := laid(t, row.segments...)
		l := open(t, dir, Options{unsigned: true})
		if got := appendTo(t, l, named("next")); got != row.next {
			t.Errorf("%s: goes on with %d, want %d", name, got, row.next)
		}
		closeLog(t, l)
		if got := len(names(t, dir)); got != int(row.next)+1 {
			t.Errorf("%s: %d lines, want %d", name, got, row.next+1)
		}
	}
}

// A damage is what became of a log of several segments, and the place that the
// error has to name.
type damage struct {
	segments [][]byte
	segment  int
	offset   int
}

func damages(t *testing.T) map[string]damage {
	one := filled(t, 5, Options{unsigned: true})[0]
	many := filled(t, 12, Options{SegmentBytes: 300})
	line := bytes.SplitAfter(one, []byte("\n"))
	second := len(line[0])
	lines := func(lines ...[]byte) [][]byte { return [][]byte{bytes.Join(lines, nil)} }
	edit := func(old, new string) []byte { return bytes.Replace(line[1], []byte(old), []byte(new), 1) }
	with := func(i int, content []byte) [][]byte {
		changed := append([][]byte(nil), many...)
		changed[i] = content
		return changed
	}
	lastStart := bytes.LastIndexByte(many[1][:len(many[1])-1], '\n') + 1
	return map[string]damage{
		"a line is missing":              {lines(line[0], line[2]), 1, second},
		"the first line is missing":      {lines(line[1:]...), 1, 0},
		"a line is there twice":          {lines(line[0], line[1], line[1]), 1, second + len(line[1])},
		"two lines are swapped":          {lines(line[0], line[2], line[1]), 1, second},
		"a newline is gone":              {lines(line[0][:second-1], line[1], line[2]), 1, second - 1 + len(line[1])},
		"an empty line":                  {lines(line[0], []byte("\n"), line[1]), 1, second},
		"a line of zeros":                {lines(line[0], make([]byte, len(line[1])), line[2]), 1, second},
		"a very long line":               {lines(line[0], make([]byte, 200<<10), line[1]), 1, second},
		"a line a byte too long":         {lines(line[0], edit("record1", "record1"+strings.Repeat("x", format.MaxLine+2-len(line[1]))), line[2]), 1, second},
		"a carriage return":              {lines(line[0], edit("\n", "\r\n")), 1, second},
		"a byte beyond ASCII":            {lines(line[0], edit("record1", "r\xe9cord1")), 1, second},
		"another version":                {lines(line[0], edit(`"v":1`, `"v":2`)), 1, second},
		"a number with a zero before it": {lines(line[0], edit(`"seq":1`, `"seq":01`)), 1, second},
		"a number with a sign":           {lines(line[0], edit(`"seq":1`, `"seq":+1`)), 1, second},
		"a negative number":              {lines(edit(`"seq":1`, `"seq":-1`)), 1, 0},
		"a number beyond 64 bits":        {lines(line[0], edit(`"seq":1`, `"seq":18446744073709551617`)), 1, second},
		"no number":                      {lines(line[0], edit(`"seq":1`, `"seq":`)), 1, second},
		"a time of another zone":         {lines(line[0], edit(`Z",`, `+`)), 1, second},
		"a time without fractions":       {lines(line[0], edit(`.`, `,`)), 1, second},
		"a time of letters":              {lines(line[0], edit(`"time":"2`, `"time":"x`)), 1, second},
		"no member after the time":       {lines(line[0], edit(`"n":"record1"`, `[]`)), 1, second},
		"nothing after the time":         {lines(line[0], edit(`"n":"record1"`, ``)), 1, second},
		"an object that does not end":    {lines(line[0], edit(`}`, ``)), 1, second},
		"the first segment is missing":   {with(0, nil), 1, 0},
		"a segment is empty":             {with(1, nil), 2, 0},
		"a segment with a torn line":     {with(1, many[1][:10]), 2, 0},
		"a segment lost its last line":   {with(1, many[1][:lastStart]), 3, 0},
		"a segment is there twice":       {with(1, many[0]), 2, 0},
		"two segments are swapped":       {append([][]byte{many[1], many[0]}, many[2:]...), 1, 0},
		"a segment ends with no line":    {with(1, append(bytes.Clone(many[1]), '\n')), 2, len(many[1])},
		"a segment ends before it began": {with(1, append(bytes.Clone(many[1]), line[0]...)), 2, len(many[1])},
		"a segment has much behind it":   {with(1, append(bytes.Clone(many[1]), make([]byte, 20<<10)...)), 2, len(many[1]) + 20<<10 - 2*(format.MaxLine+1)},
	}
}

func TestOpenRefusesDamageAndChangesNothing(t *testing.T) {
	for name, d := range damages(t) {
		t.Run(name, func(t *testing.T) {
			dir := laid(t, d.segments...)
			_, err := Open(dir, Options{unsigned: true})
			var damage *format.DamageError
			if !errors.As(err, &damage) {
				t.Fatalf("open: %v, want a damage", err)
			}
			if damage.Segment != format.SegmentPath(dir, d.segment) || damage.Offset != int64(d.offset) {
				t.Errorf("%v\nwant it in segment %d at byte %d", err, d.segment, d.offset)
			}
			for _, want := range []string{damage.Segment, fmt.Sprint("at byte ", d.offset), "restore", "new log"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			for i, content := range d.segments {
				if got := readFile(t, format.SegmentPath(dir, i+1)); !bytes.Equal(got, content) {
					t.Errorf("segment %d was changed", i+1)
				}
			}
		})
	}
}

func TestOpenMissesASegment(t *testing.T) {
	for missing := 1; missing <= 2; missing++ {
		dir := laid(t, filled(t, 12, Options{SegmentBytes: 300})...)
		if err := os.Remove(format.SegmentPath(dir, missing)); err != nil {
			t.Fatal(err)
		}
		var damage *format.DamageError
		if _, err := Open(dir, Options{unsigned: true}); !errors.As(err, &damage) || damage.Segment != format.SegmentPath(dir, missing) {
			t.Errorf("open without segment %d: %v", missing, err)
		}
		if _, err := NewReader(dir, 0); !errors.As(err, &damage) {
			t.Errorf("reader without segment %d: %v", missing, err)
		}
	}
}

func TestOtherFilesAreNotSegments(t *testing.T) {
	dir := laid(t, filled(t, 1, Options{unsigned: true})...)
	for _, name := range []string{"00000000.log", "2.log", "000000002.log", "-0000002.log", "00000002.torn", "00000002.log~", "x.log"} {
		writeFile(t, filepath.Join(dir, name), []byte("x"))
	}
	if paths, err := format.Segments(dir); err != nil || len(paths) != 1 {
		t.Errorf("segments %v, %v; want the first alone", paths, err)
	}
}

func TestSegmentsAreInTheOrderOfTheirNumbers(t *testing.T) {
	dir := t.TempDir()
	for _, number := range []int{100000000, 99999999, 1} {
		writeFile(t, format.SegmentPath(dir, number), nil)
	}
	paths, err := format.Segments(dir)
	if err != nil || len(paths) != 3 || paths[0] != format.SegmentPath(dir, 1) || paths[2] != format.SegmentPath(dir, 100000000) {
		t.Errorf("segments %v, %v", paths, err)
	}
}

// lineForm says what a line is, independently of the code.
var lineForm = regexp.MustCompile(`^\{"v":1,"seq":(0|[1-9][0-9]*),"time":"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z","[ -~]*\}$`)

// wellFormed reports whether content is lines 0, 1, … and perhaps a torn one,
// which begins at torn.
func wellFormed(content []byte) (lines, torn int, ok bool) {
	for {
		line, _, more := bytes.Cut(content[torn:], []byte("\n"))
		if !more {
			return lines, torn, true
		}
		number := lineForm.FindSubmatch(line)
		if number == nil || len(line) > 8192 || string(number[1]) != strconv.Itoa(lines) {
			return 0, 0, false
		}
		lines++
		torn += len(line) + 1
	}
}

// FuzzOpen: a last segment is accepted exactly if it is whole lines in order
// and a torn one; then nothing is lost, and the log goes on.
func FuzzOpen(f *testing.F) {
	const stamp = `{"v":1,"seq":%d,"time":"2026-11-20T09:51:38.362114Z","n":%[1]d}` + "\n"
	whole := fmt.Sprintf(stamp, 0) + fmt.Sprintf(stamp, 1) + fmt.Sprintf(stamp, 2)
	f.Add([]byte(whole))
	f.Add([]byte(whole[:len(whole)-5]))
	f.Add([]byte(strings.Replace(whole, "\n", "J", 1)))
	f.Add([]byte(strings.Replace(whole, `"seq":1`, `"seq":2`, 1)))
	f.Add(make([]byte, 100))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := laid(t, content)
		lines, torn, ok := wellFormed(content)
		l, err := Open(dir, Options{unsigned: true})
		if (err == nil) != ok {
			t.Fatalf("open: %v; well formed: %v", err, ok)
		}
		if err != nil {
			return
		}
		if seq := appendTo(t, l, named("next")); seq != int64(lines) {
			t.Errorf("goes on with %d, want %d", seq, lines)
		}
		closeLog(t, l)
		if got := readFile(t, format.SegmentPath(dir, 1)); !bytes.HasPrefix(got, content[:torn]) {
			t.Error("whole lines were changed")
		}
		if torn < len(content) && !bytes.Equal(readFile(t, filepath.Join(dir, "00000001.torn")), content[torn:]) {
			t.Error("the torn line was not kept")
		}
		closeLog(t, open(t, dir, Options{unsigned: true}))
	})
}
