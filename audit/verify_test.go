package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/audit/verify"
)

// covers says which black-box cases a test covers; the e2e tests list them.
func covers(t *testing.T, ids ...string) { t.Helper() }

// A signedLog is a small log of several segments and epochs.
type signedLog struct {
	dir, key string
	anchors  []string // every checkpoint
	records  int64
}

// signed makes a log of 30 records: a checkpoint every eight, two starts, and segments
// of about fourteen records.
func signed(t *testing.T, o Options) *signedLog {
	t.Helper()
	s := &signedLog{dir: filepath.Join(t.TempDir(), "audit"), records: 30}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 1000
	}
	o.Anchor = func(n []byte) { s.anchors = append(s.anchors, string(n)) }
	l := create(t, s.dir, o)
	_, s.key = l.Origin()
	for i := range s.records {
		if i == 13 {
			closeLog(t, l)
			l = open(t, s.dir, o)
		}
		appendTo(t, l, named(fmt.Sprint("record", i)))
		if i%8 == 7 {
			if _, err := l.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeLog(t, l)
	return s
}

func (s *signedLog) verify(t *testing.T, given ...string) *verify.Report {
	t.Helper()
	r, err := verify.Log(s.dir, s.key, []byte(strings.Join(given, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	if quick := s.quick(t, s.key, given...); r.Code == verify.Good && quick != verify.Good {
		t.Errorf("what is good is %d to Quick", quick)
	}
	return r
}

func (s *signedLog) quick(t *testing.T, key string, given ...string) (code int) {
	t.Helper()
	r, err := verify.Quick(s.dir, key, []byte(strings.Join(given, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return r.Code
}

func (s *signedLog) files(t *testing.T) map[string][]byte {
	t.Helper()
	all := make(map[string][]byte)
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && !e.IsDir() {
			all[e.Name()] = readFile(t, filepath.Join(s.dir, e.Name()))
		}
	}
	return all
}

func TestALogThatIsGood(t *testing.T) {
	s := signed(t, Options{})
	r := s.verify(t)
	if r.Code != verify.Good || r.Records != 30 || r.Unsigned != 0 || r.Unvouched != 30 || r.Segments < 2 || r.Epochs < 4 || r.Newest != s.anchors[len(s.anchors)-1] {
		t.Errorf("report %+v", r)
	}
	if r := s.verify(t, s.anchors...); r.Code != verify.Good || r.Unvouched != 0 {
		t.Errorf("with all checkpoints from outside: %+v", r)
	}
	for _, a := range s.anchors {
		c, err := format.ReadNote([]byte(a))
		if err != nil {
			t.Fatal(err)
		}
		if r := s.verify(t, a); r.Code != verify.Good || r.Unvouched != 30-c.Size {
			t.Errorf("with the checkpoint of %d records: %+v", c.Size, r)
		}
	}
}

// stride is how many places a test goes on at a time: one with EGRESSD_AUDIT_BITS set.
func stride(some int) int {
	if os.Getenv("EGRESSD_AUDIT_BITS") != "" {
		return 1
	}
	return some
}

// TestEveryBit flips bits of a log, one at a time: every eleventh of a segment and every
// 31st of its checkpoints; with EGRESSD_AUDIT_BITS set, every bit of a log of several
// segments.
func TestEveryBit(t *testing.T) {
	covers(t, "AU-05")
	o := Options{SegmentBytes: 1 << 20}
	if stride(0) == 1 {
		o = Options{}
	}
	s := signed(t, o)
	for name, content := range s.files(t) {
		path := filepath.Join(s.dir, name)
		step := stride(11)
		if strings.HasSuffix(name, ".ckpt") {
			step = stride(31)
		}
		for bit := 0; bit < 8*len(content); bit += step {
			poke(t, path, bit/8, content[bit/8]^1<<(bit%8))
			r := s.verify(t)
			quick, keyless := s.quick(t, s.key), s.quick(t, "")
			poke(t, path, bit/8, content[bit/8])
			if r.Code == verify.Good {
				t.Fatalf("%s: bit %d flipped, and the log is good", name, bit)
			}
			if strings.HasSuffix(name, ".log") {
				if quick != r.Code || keyless != r.Code {
					t.Fatalf("%s: bit %d flipped: %d, to Quick %d, without the key %d", name, bit, r.Code, quick, keyless)
				}
				seq := seqAt(content, bit/8)
				if r.Code == verify.Tampered && (seq < *r.From || seq >= *r.To) || r.Code == verify.TornTail {
					t.Fatalf("%s: bit %d, of record %d: %+v from %d to %d", name, bit, seq, r, *r.From, *r.To)
				}
			}
		}
	}
	if r := s.verify(t); r.Code != verify.Good {
		t.Fatalf("put back, the log is %+v", r)
	}
}

// poke writes one byte of a file.
func poke(t *testing.T, path string, at int, b byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{b}, int64(at))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// seqAt returns the number of the record that a byte of a segment belongs to.
func seqAt(content []byte, at int) int64 {
	start := bytes.LastIndexByte(content[:at], '\n') + 1
	var line struct{ Seq int64 }
	if err := json.Unmarshal(content[start:start+bytes.IndexByte(content[start:], '\n')], &line); err != nil {
		panic(err)
	}
	return line.Seq
}

// TestEveryTruncation cuts every file at the ends of lines and around there, and at
// every 13th byte; with EGRESSD_AUDIT_BITS set, at every byte.
func TestEveryTruncation(t *testing.T) {
	s := signed(t, Options{})
	files := s.files(t)
	last := ""
	for name := range files {
		if strings.HasSuffix(name, ".ckpt") {
			last = max(last, name)
		}
	}
	newest := s.anchors[len(s.anchors)-1]
	for name, content := range files {
		path := filepath.Join(s.dir, name)
		for size := range content {
			if atLine := bytes.IndexByte(content[max(0, size-1):size+1], '\n') >= 0; size%stride(13) != 0 && !atLine {
				continue
			}
			writeFile(t, path, content[:size])
			r := s.verify(t)
			// What cuts off checkpoints at their end makes them fewer; only what was kept
			// outside tells, where that has more records than are left.
			whole := name == last && (size == 0 || bytes.HasSuffix(content[:size], []byte("\n\n")) && bytes.Count(content[:size], []byte("\n\n"))%2 == 0)
			if r.Code == verify.Good && !whole {
				t.Fatalf("%s cut at %d: %+v", name, size, r)
			}
			if whole {
				if r := s.verify(t, newest); r.Code != verify.Good && r.Code != verify.Unknown {
					t.Fatalf("%s cut at %d, with the newest checkpoint: %+v", name, size, r)
				}
			}
		}
		writeFile(t, path, content)
	}
}

// TestCutAtARecord: the end of the log and its checkpoints are cut off together.
func TestCutAtARecord(t *testing.T) {
	covers(t, "AU-07")
	s := signed(t, Options{SegmentBytes: 1 << 20})
	log := bytes.SplitAfter(readFile(t, format.SegmentPath(s.dir, 1)), []byte("\n"))
	notes := readFile(t, format.NotePath(s.dir, 1))
	for kept := range s.records {
		var left []byte
		for _, a := range s.anchors {
			c, err := format.ReadNote([]byte(a))
			if err != nil {
				t.Fatal(err)
			}
			if c.Size <= kept {
				left = append(left, a+"\n"...)
			}
		}
		if !bytes.HasPrefix(notes, left) {
			t.Fatal("the anchors are not the notes")
		}
		writeFile(t, format.SegmentPath(s.dir, 1), bytes.Join(log[:kept], nil))
		writeFile(t, format.NotePath(s.dir, 1), left)
		if r := s.verify(t); r.Code != verify.Good || r.Unvouched != kept || r.Records != kept {
			t.Errorf("cut to %d records: %+v", kept, r)
		}
		if r := s.verify(t, s.anchors[len(s.anchors)-1]); r.Code != verify.Truncated && r.Code != verify.Unknown {
			t.Errorf("cut to %d records, with a checkpoint of 30: %+v", kept, r)
		}
	}
}

func TestWhatIsDoneToFiles(t *testing.T) {
	move := func(from, to string) func(*testing.T, *signedLog) {
		return func(t *testing.T, s *signedLog) {
			if err := os.Rename(filepath.Join(s.dir, from), filepath.Join(s.dir, to)); err != nil {
				t.Fatal(err)
			}
		}
	}
	both := func(do ...func(*testing.T, *signedLog)) func(*testing.T, *signedLog) {
		return func(t *testing.T, s *signedLog) {
			for _, d := range do {
				d(t, s)
			}
		}
	}
	edit := func(name string, change func([]byte) []byte) func(*testing.T, *signedLog) {
		return func(t *testing.T, s *signedLog) {
			path := filepath.Join(s.dir, name)
			writeFile(t, path, change(readFile(t, path)))
		}
	}
	copied := func(from, to string) func(*testing.T, *signedLog) {
		return func(t *testing.T, s *signedLog) {
			writeFile(t, filepath.Join(s.dir, to), readFile(t, filepath.Join(s.dir, from)))
		}
	}
	last := fmt.Sprintf("%08d", len(numbersOf(t, signed(t, Options{}).dir)))
	for name, row := range map[string]struct {
		do   func(*testing.T, *signedLog)
		want int
	}{
		"nothing":                            {func(*testing.T, *signedLog) {}, verify.Good},
		"a segment is gone":                  {move("00000002.log", "x"), verify.Tampered},
		"the first segment is gone":          {move("00000001.log", "x"), verify.Tampered},
		"the last segment is gone":           {move(last+".log", "x"), verify.Truncated},
		"the last segment is gone, with its": {both(move(last+".log", "x"), move(last+".ckpt", "y")), verify.Truncated},
		"the checkpoints of one are gone":    {move("00000002.ckpt", "x"), verify.Tampered},
		"the first checkpoints are gone":     {move("00000001.ckpt", "x"), verify.Tampered},
		"two segments are swapped":           {both(move("00000001.log", "x"), move("00000002.log", "00000001.log"), move("x", "00000002.log")), verify.Tampered},
		"a segment is there twice":           {copied("00000001.log", "00000002.log"), verify.Tampered},
		"a segment behind the end":           {copied(last+".log", "00000099.log"), verify.Tampered},
		"checkpoints are swapped":            {both(move("00000001.ckpt", "x"), move("00000002.ckpt", "00000001.ckpt"), move("x", "00000002.ckpt")), verify.Unknown},
		"a line is there twice":              {edit("00000002.log", func(b []byte) []byte { return append(bytes.SplitAfter(b, []byte("\n"))[0], b...) }), verify.Tampered},
		"a line is missing":                  {edit("00000002.log", func(b []byte) []byte { return b[bytes.IndexByte(b, '\n')+1:] }), verify.Tampered},
		"bytes behind a seal":                {edit("00000002.log", func(b []byte) []byte { return append(b, 'x') }), verify.Tampered},
		"bytes behind the end":               {edit(last+".log", func(b []byte) []byte { return append(b, "{\"v\":1,\"se"...) }), verify.TornTail},
		"bytes and newlines behind the end":  {edit(last+".log", func(b []byte) []byte { return append(b, "a\nb\nc\n\x00"...) }), verify.TornTail},
		"a part of a checkpoint":             {edit(last+".ckpt", func(b []byte) []byte { return append(b, "egressd/"...) }), verify.TornTail},
		"something behind a seal":            {edit("00000001.ckpt", func(b []byte) []byte { return append(b, b...) }), verify.Tampered},
	} {
		t.Run(name, func(t *testing.T) {
			s := signed(t, Options{})
			row.do(t, s)
			if r := s.verify(t); r.Code != row.want {
				t.Errorf("%+v, want %d", r, row.want)
			}
		})
	}
}

func numbersOf(t *testing.T, dir string) []int {
	t.Helper()
	all, err := format.ListFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	return all.Logs
}

func TestOtherKeysAndOtherLogs(t *testing.T) {
	covers(t, "AU-11")
	s, other := signed(t, Options{}), signed(t, Options{})
	key, anchor := other.key, other.anchors[3]
	if r := s.verify(t, anchor); r.Code != verify.Unknown {
		t.Errorf("a checkpoint of another log: %+v", r)
	}
	for _, row := range []struct{ key, anchor string }{{key, ""}, {"", ""}, {newSigner(s.verify(t).Origin).public(), ""}} {
		s.key = row.key
		if r := s.verify(t); r.Code != verify.Unknown {
			t.Errorf("key %q: %+v", row.key, r)
		}
	}
	for _, bad := range []string{"x", s.dir, key[1:], key + "=", key[:len(key)-4] + "AAAA"} {
		if _, err := verify.Log(other.dir, bad, nil); err == nil {
			t.Errorf("key %q is accepted", bad)
		}
	}
	if _, err := verify.Log(t.TempDir(), key, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no log: %v", err)
	}
	if _, err := verify.Log(other.dir, key, []byte("x")); err == nil {
		t.Error("what is no checkpoint is accepted")
	}
}

// TestATailSignedAgain: who has the key of today signs a past of their own.
func TestATailSignedAgain(t *testing.T) {
	s := signed(t, Options{SegmentBytes: 1 << 20})
	stolen, err := readKeys(keyPath(keyFolder(s.dir, ""), s.verify(t).Origin, ".key"))
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(readFile(t, format.SegmentPath(s.dir, 1)), []byte("record3"), []byte("record9"), 1)
	writeFile(t, format.SegmentPath(s.dir, 1), changed)
	var m format.Mark
	m.Segment = 1
	for line := range bytes.Lines(changed) {
		m.Add(line[:len(line)-1])
	}
	n := &notary{keys: stolen, options: &Options{}}
	c := n.checkpoint(&m)
	forged, err := stolen.now.signNote(c)
	if err != nil {
		t.Fatal(err)
	}
	notes := readFile(t, format.NotePath(s.dir, 1))
	writeFile(t, format.NotePath(s.dir, 1), append(append(bytes.Clone(notes), forged...), '\n'))
	if r := s.verify(t); r.Code != verify.Tampered || *r.From > 3 || *r.To <= 3 {
		t.Errorf("a record of an earlier epoch was changed: %+v", r)
	}
	// Nor can they sign all of it again: the root key is gone.
	c.Size, m = 0, format.Mark{Segment: 1}
	first, err := stolen.now.signNote(n.checkpoint(&m))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, format.NotePath(s.dir, 1), append(append(append(first, '\n'), forged...), '\n'))
	if r := s.verify(t); r.Code != verify.Unknown {
		t.Errorf("all checkpoints were made again: %+v", r)
	}
}

// TestTheVectorOfTheDocument lays the log that docs/reference/audit-format.md shows.
func TestTheVectorOfTheDocument(t *testing.T) {
	page := string(readFile(t, filepath.Join("..", "docs", "reference", "audit-format.md")))
	dir := t.TempDir()
	blocks := regexp.MustCompile("(?s)`(0000000[12]\\.(?:log|ckpt))`\n\n```\n(.*?\n)```\n").FindAllStringSubmatch(page, -1)
	if len(blocks) != 4 {
		t.Fatalf("the page has %d files, want 4", len(blocks))
	}
	for _, b := range blocks {
		writeFile(t, filepath.Join(dir, b[1]), []byte(b[2]))
	}
	key := regexp.MustCompile(`egressd/00112233445566778899aabbccddeeff\+ba249c37\+\S+`).FindString(page)
	s := &signedLog{dir: dir, key: key}
	r := s.verify(t)
	if r.Code != verify.Good || r.Records != 4 || r.Epochs != 2 {
		t.Fatalf("%+v", r)
	}
	c, err := format.ReadNote([]byte(r.Newest))
	if err != nil || !strings.Contains(page, fmt.Sprintf("    %x\n", c.Root[:])) {
		t.Errorf("the page does not have the root %x: %v", c.Root[:], err)
	}
	var text strings.Builder
	if err := writeSpans(&text, &format.Pruned{Dir: dir}, 1); err != nil || !strings.Contains(page, "```\n"+text.String()+"```\n") {
		t.Errorf("the page does not have the tree file\n%s%v", text.String(), err)
	}
	if err := removeSegment(&format.Pruned{Dir: dir}, 1); err != nil {
		t.Fatal(err)
	}
	if r := s.verify(t); r.Code != verify.Good || r.Removed != 1 {
		t.Errorf("without segment 1: %+v", r)
	}
}
