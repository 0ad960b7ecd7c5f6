package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/egressd/egressd/audit/internal/format"
)

// An injector, which has a process of its own, lasts as long as that.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/egressd/egressd/audit.(*injector).answer"))
}

func create(t *testing.T, dir string, o Options) *Log {
	t.Helper()
	l, err := Create(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func open(t *testing.T, dir string, o Options) *Log {
	t.Helper()
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func appendTo(t *testing.T, l *Log, record string) int64 {
	t.Helper()
	seq, err := l.Append([]byte(record))
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func wait(t *testing.T, l *Log, seq int64) {
	t.Helper()
	if err := l.Wait(t.Context(), seq); err != nil {
		t.Fatal(err)
	}
}

func closeLog(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// lines returns all that a reader of the log sees.
func lines(t *testing.T, dir string) []string {
	t.Helper()
	r, err := NewReader(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var all []string
	for {
		line, err := r.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(line))
	}
}

// names returns the member n of every line, which the tests give their
// records, and checks that line i is numbered i.
func names(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	for i, line := range lines(t, dir) {
		var record struct {
			Seq int64
			N   string
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if record.Seq != int64(i) {
			t.Fatalf("line %d has number %d", i, record.Seq)
		}
		all = append(all, record.N)
	}
	return all
}

func named(n string) string { return `{"n":"` + n + `"}` }

func TestALineIsTheStampAndTheRecord(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	before := time.Now().Truncate(time.Microsecond)
	for want := range int64(3) {
		if seq := appendTo(t, l, `{"kind":"open","bytes":{"up":0}}`); seq != want {
			t.Errorf("seq %d, want %d", seq, want)
		}
	}
	got := lines(t, dir)
	if len(got) != 3 {
		t.Fatalf("%d lines, want 3", len(got))
	}
	for i, line := range got {
		stamp := fmt.Sprintf(`{"v":1,"seq":%d,"time":"`, i)
		date := line[len(stamp):][:len(format.TimeLayout)]
		if want := stamp + date + `","kind":"open","bytes":{"up":0}}`; line != want {
			t.Errorf("line %s\nwant %s", line, want)
		}
		at, err := time.Parse("2006-01-02T15:04:05.000000Z", date)
		if err != nil || at.Before(before) || at.After(time.Now()) {
			t.Errorf("time %s (%v), want one since %s", date, err, before)
		}
	}
}

func TestAppendRefusesWhatIsNotARecord(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	long := `{"n":"` + strings.Repeat("x", MaxRecord-len(`{"n":""}`)) + `"}`
	for name, record := range map[string]string{
		"nothing":                       "",
		"an array":                      `["n"]`,
		"an object that has no members": `{}`,
		"an object that does not end":   `{"n":1`,
		"a space in front":              ` {"n":1}`,
		"a newline behind":              "{\"n\":1}\n",
		"a newline inside":              "{\"n\":\n1}",
		"a carriage return":             "{\"n\":\r1}",
		"a tab":                         "{\"n\":\t1}",
		"a NUL":                         "{\"n\":\"\x00\"}",
		"a DEL":                         "{\"n\":\"\x7f\"}",
		"a letter beyond ASCII":         `{"n":"é"}`,
		"one byte too many":             `{"n":"x` + long[len(`{"n":"`):],
	} {
		if _, err := l.Append([]byte(record)); err == nil || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: error %v, want one about the record", name, err)
		}
	}
	if seq := appendTo(t, l, long); seq != 0 {
		t.Errorf("the longest record has number %d, want 0", seq)
	}
	if got := lines(t, dir); len(got) != 1 || len(got[0]) > format.MaxLine {
		t.Errorf("%d lines, want the longest record alone, in at most %d bytes", len(got), format.MaxLine)
	}
}

func TestPrintableAtEveryPlace(t *testing.T) {
	for b := range 256 {
		for at := range 20 {
			text := bytes.Repeat([]byte("~ "), 10)
			text[at] = byte(b)
			if got, want := format.Printable(text), 0x20 <= b && b <= 0x7e; got != want {
				t.Fatalf("byte %#x at %d: %v, want %v", b, at, got, want)
			}
		}
	}
}

func TestTheLongestStampFits(t *testing.T) {
	l := &Log{end: format.Position{Seq: 1<<63 - 1}}
	l.stamp([][]byte{bytes.Repeat([]byte("x"), MaxRecord)}, time.Now())
	if got := len(l.buffer) - len("\n"); got != format.MaxLine {
		t.Errorf("the longest line has %d bytes, want %d", got, format.MaxLine)
	}
}

func TestCreateRefusesALogAndOpenRefusesNone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	if _, err := Open(dir, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of no directory: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of an empty directory: %v", err)
	}
	closeLog(t, create(t, dir, Options{}))
	if _, err := Create(dir, Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over a log: %v", err)
	}
	closeLog(t, open(t, dir, Options{}))
	if err := os.Rename(format.SegmentPath(dir, 1), format.SegmentPath(dir, 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("create over the rest of a log: %v", err)
	}
}

func TestOnlyTheOwnerReadsTheLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	create(t, dir, Options{})
	for path, want := range map[string]fs.FileMode{
		dir:                                0o700 | fs.ModeDir,
		filepath.Join(dir, "lock"):         0o600,
		filepath.Join(dir, "00000001.log"): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, want)
		}
	}
}

func TestASecondWriterIsRefused(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("second open: %v", err)
	}
	if _, err := Create(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("create over an open log: %v", err)
	}
	if pid := Writer(dir); pid != os.Getpid() {
		t.Errorf("the writer is %d, not %d", pid, os.Getpid())
	}
	appendTo(t, l, named("first"))
	closeLog(t, l)
	if pid := Writer(dir); pid != 0 {
		t.Errorf("the writer of a closed log is %d", pid)
	}
	if seq := appendTo(t, open(t, dir, Options{}), named("second")); seq != 1 {
		t.Errorf("the next writer begins with %d, want 1", seq)
	}
}

func TestConcurrentRecordsAreNeitherLostNorMixed(t *testing.T) {
	for _, o := range []Options{{}, {SegmentBytes: 4 << 10}, {Durability: Process}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			dir := t.TempDir()
			l := create(t, dir, o)
			const writers, each = 16, 100
			var mu sync.Mutex
			bySeq := make(map[int64]string)
			var all sync.WaitGroup
			for w := range writers {
				all.Go(func() {
					for i := range each {
						name := fmt.Sprintf("%d-%d-%s", w, i, strings.Repeat("x", i))
						seq, err := l.Append([]byte(named(name)))
						if err == nil && i%4 == 0 {
							err = l.Wait(t.Context(), seq)
						}
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						bySeq[seq] = name
						mu.Unlock()
					}
				})
			}
			all.Wait()
			closeLog(t, l)
			got := names(t, dir)
			if len(got) != writers*each || len(bySeq) != len(got) {
				t.Fatalf("%d lines and %d numbers, want %d", len(got), len(bySeq), writers*each)
			}
			for seq, name := range got {
				if bySeq[int64(seq)] != name {
					t.Errorf("line %d holds %q, its writer was told that %q", seq, name, bySeq[int64(seq)])
				}
			}
			if seq := appendTo(t, open(t, dir, o), named("next")); seq != writers*each {
				t.Errorf("goes on with %d, want %d", seq, writers*each)
			}
		})
	}
}

// together appends records in one write, and returns what each append did.
func together(l *Log, records ...string) (seqs []int64, errs []error) {
	seqs, errs = make([]int64, len(records)), make([]error, len(records))
	var all sync.WaitGroup
	l.writing.Lock()
	for i, record := range records {
		all.Go(func() { seqs[i], errs[i] = l.Append([]byte(record)) })
		for queued(l) <= i {
			runtime.Gosched()
		}
	}
	l.writing.Unlock()
	all.Wait()
	return seqs, errs
}

func queued(l *Log) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue.records)
}

func TestWhoComesDuringAWriteSharesTheNext(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	seqs, errs := together(l, named("a"), named("b"), named("c"))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(seqs) != "[0 1 2]" || fmt.Sprint(names(t, dir)) != "[a b c]" {
		t.Errorf("numbers %v of %v, want those of the order of arrival", seqs, names(t, dir))
	}
	times := make(map[string]bool)
	for _, line := range lines(t, dir) {
		times[line[len(`{"v":1,"seq":0,"time":"`):][:len(format.TimeLayout)]] = true
	}
	if len(times) != 1 {
		t.Errorf("%d different times, want one write with one", len(times))
	}
}

func TestASegmentStaysBelowItsSize(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{SegmentBytes: 1000})
	large := named(strings.Repeat("x", 2000))
	appendTo(t, l, large)
	for i := range 50 {
		appendTo(t, l, named(fmt.Sprint(i)))
	}
	appendTo(t, l, large)
	appendTo(t, l, named("last"))
	paths, err := format.Segments(dir)
	if err != nil || len(paths) < 5 {
		t.Fatalf("%d segments, %v", len(paths), err)
	}
	tooLarge := 0
	for i, path := range paths {
		if want := fmt.Sprintf("%08d.log", i+1); filepath.Base(path) != want {
			t.Errorf("segment %s, want %s", path, want)
		}
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("%s is empty, %v", path, err)
		} else if info.Size() > 1000 {
			tooLarge++
		}
	}
	if tooLarge != 2 {
		t.Errorf("%d segments are too large, want only those of the two large records", tooLarge)
	}
	if got := names(t, dir); len(got) != 53 || got[52] != "last" {
		t.Errorf("%d lines, want 53", len(got))
	}
}

// TestRecordsThatComeTogetherHaveNumbersInARow appends some at once, beside others.
func TestRecordsThatComeTogetherHaveNumbersInARow(t *testing.T) {
	dir := t.TempDir()
	l := create(t, dir, Options{})
	appendTo(t, l, named("a"))
	first, n, err := l.AppendAll([][]byte{[]byte(named("b")), []byte(named("c")), []byte(named("d"))})
	if first != 1 || n != 3 || err != nil {
		t.Fatalf("%d, %d, %v", first, n, err)
	}
	if first, n, err := l.AppendAll([][]byte{[]byte(named("x")), []byte("no record")}); n != 0 || err == nil {
		t.Errorf("with one that is none: %d, %d, %v", first, n, err)
	}
	if _, n, err := l.AppendAll(nil); n != 0 || err != nil {
		t.Errorf("none: %d, %v", n, err)
	}
	if seq := appendTo(t, l, named("e")); seq != 4 {
		t.Errorf("goes on with %d", seq)
	}
	wait(t, l, 3)
	closeLog(t, l)
	if got := fmt.Sprint(names(t, dir)); got != "[a b c d e]" {
		t.Errorf("the log holds %s", got)
	}
	if _, n, err := l.AppendAll([][]byte{[]byte(named("f")), []byte(named("g"))}); n != 0 || !errors.Is(err, ErrUnavailable) {
		t.Errorf("when it is closed: %d, %v", n, err)
	}
}
