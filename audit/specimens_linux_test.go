package audit

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/egressd/egressd/audit/verify"
)

// A specimen is a log as its files, and what has to be known to judge a copy of it
// that was changed.
type specimen struct {
	name    string
	files   map[string][]byte
	key     string
	anchors []string // every note, in order
	stolen  *keys    // of the last epoch
	code    int      // that is due
}

// specimens are logs of 200 records, in several segments and epochs: clean, with a
// seal that has bytes behind it; as a crash leaves one; with segments removed; and
// one of a single segment.
func specimens(t *testing.T) []*specimen {
	t.Helper()
	clean := makeSpecimen(t, "clean", 200, Options{SegmentBytes: 4000})
	crashed := clean.copy("crashed")
	last := fileName(clean.lastLog(), ".log")
	for i := range 5 {
		crashed.files[last] = fmt.Appendf(crashed.files[last], `{"v":1,"seq":%d,"time":"2026-11-20T09:51:38.362114Z","n":"unsigned%d"}`+"\n", 200+i, i)
	}
	crashed.files[last] = append(crashed.files[last], `{"v":1,"seq":205,"time":"2026`...)
	crashed.code = verify.TornTail
	retained := makeSpecimen(t, "retained", 200, Options{SegmentBytes: 4000, Retain: Retain{Segments: 2}})
	unbegun := clean.copy("a crash between a seal and the next note")
	delete(unbegun.files, fileName(clean.lastNotes(), ".ckpt"))
	all := []*specimen{clean, crashed, retained, unbegun, makeSpecimen(t, "one segment", 20, Options{SegmentBytes: 1 << 20})}
	if n := len(retained.names(".tree")); n < 2 || len(clean.names(".log")) < 4 {
		t.Fatalf("%d trees, segments %q", n, clean.names(".log"))
	}
	return all
}

func makeSpecimen(t *testing.T, name string, records int, o Options) *specimen {
	t.Helper()
	s := &signedLog{dir: filepath.Join(t.TempDir(), "audit")}
	o.Anchor = func(n []byte) { s.anchors = append(s.anchors, string(n)) }
	l := create(t, s.dir, o)
	_, s.key = l.Origin()
	for i := range records {
		if i == records/3 || i == records/2 {
			closeLog(t, l)
			l = open(t, s.dir, o)
		}
		if i == records/2+5 && o.SegmentBytes < 1<<20 {
			tearOff(t, l)
		}
		appendTo(t, l, named(fmt.Sprint("record", i)))
		if i%8 == 7 {
			if _, err := l.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeLog(t, l)
	origin, _, _ := strings.Cut(s.key, "+")
	stolen, err := readKeys(keyPath(keyFolder(s.dir, ""), origin, ".key"))
	if err != nil {
		t.Fatal(err)
	}
	return &specimen{name: name, files: unpackFiles(s.files(t)), key: s.key, anchors: s.anchors, stolen: stolen}
}

// tearOff makes l go on in a new segment, with a part of a line at the end of the
// old one.
func tearOff(t *testing.T, l *Log) {
	t.Helper()
	path := l.segment.Name()
	breakDescriptor(t, l, full(t))
	l.Append([]byte(named("refused")))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"v":1,"seq`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
}

func fileName(number int, extension string) string { return fmt.Sprintf("%08d%s", number, extension) }

func (s *specimen) copy(name string) *specimen {
	c := *s
	c.name, c.files = name, maps.Clone(s.files)
	for file, content := range c.files {
		c.files[file] = bytes.Clone(content)
	}
	return &c
}

func (s *specimen) names(extension string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if strings.HasSuffix(name, extension) {
			all = append(all, name)
		}
	}
	return all
}

func numberOf(name string) int {
	digits, _, _ := strings.Cut(name, ".")
	n, err := strconv.Atoi(digits)
	if err != nil {
		panic(err)
	}
	return n
}

func (s *specimen) lastLog() int   { return numberOf(last(s.names(".log"))) }
func (s *specimen) lastNotes() int { return numberOf(last(s.names(".ckpt"))) }

func last[E any](s []E) E { return s[len(s)-1] }

// signed is how many records the newest note is for.
func (s *specimen) signed() int {
	return last(cutNotes(s.files[fileName(s.lastNotes(), ".ckpt")])).size
}

// A cutNote is a note of a file, found by its empty lines alone.
type cutNote struct {
	at   int // in the file
	text []byte
	size int
	next bool
}

func cutNotes(file []byte) (all []cutNote) {
	for at := 0; at < len(file); {
		n := cutNote{at: at, text: file[at:]}
		if head := bytes.Index(n.text, []byte("\n\n")); head >= 0 {
			if end := bytes.Index(n.text[head+2:], []byte("\n\n")); end >= 0 {
				n.text = bytes.Clone(n.text[:head+2+end+2])
			}
			n.next = bytes.Contains(n.text[:head+1], []byte("\nnext "))
			n.size, _ = strconv.Atoi(string(bytes.Split(n.text, []byte("\n"))[1]))
		}
		at += len(n.text)
		all = append(all, n)
	}
	return all
}
