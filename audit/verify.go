package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/tlog"
)

// What Verify can find, by the exit code of egressd log verify. Which of them is
// reported where several apply is said in docs/audit-format.md.
const (
	Good      = 0
	Tampered  = 1 // a record, a checkpoint or a file is not what was written
	Truncated = 2 // the end of the log is gone, or it is not the log of a checkpoint that was given
	TornTail  = 3 // a crash has cut off the last write, and nobody has recovered it yet
	Unknown   = 4 // nothing in the log is signed by the key
)

var verdicts = [...]string{"good", "tampered", "truncated", "torn", "unknown"}

// A Report is what Verify has found.
type Report struct {
	Code    int    `json:"code"`
	Verdict string `json:"verdict"` // the code in a word
	Problem string `json:"problem,omitempty"`

	// Of a log that was tampered with: the records among which the first that is
	// wrong is, from From to before To.
	From *int64 `json:"from,omitempty"`
	To   *int64 `json:"to,omitempty"`

	Origin    string `json:"origin,omitempty"`
	Epochs    int    `json:"epochs"`
	Segments  int    `json:"segments"` // that are there
	Removed   int    `json:"removed"`  // segments that retention has removed
	Records   int64  `json:"records"`  // from the first one on, as far as the log was read
	Unsigned  int64  `json:"unsigned"` // the last ones, for which there is no checkpoint yet
	Unvouched int64  `json:"unvouched"`
	TornBytes int64  `json:"torn_bytes,omitempty"`
	Newest    string `json:"checkpoint,omitempty"` // the newest that is good
}

// A finding is why a log is not good.
type finding struct {
	code     int
	from, to int64
	problem  string
}

func (f *finding) Error() string { return f.problem }

// Verify reads the log in dir from its first record to its last, also while it is
// being written, and says whether it is what the owner of the root key has signed.
// Given are checkpoints of this log that were kept elsewhere, one signed note after the
// other; they may be empty. The records behind the newest of them are those that nothing
// outside vouches for. An error says that the log could not be read, that key or
// given are malformed, or that there is no log, with [fs.ErrNotExist]. It holds no
// more of the log in memory than a line.
func Verify(dir, key string, given []byte) (*Report, error) {
	if key != "" {
		if err := CheckKey(key); err != nil {
			return nil, err
		}
	}
	outside, err := parseGiven(given)
	if err != nil {
		return nil, err
	}
	w := &walker{dir: dir, key: key, outside: outside}
	if err := w.list(); err != nil {
		return nil, err
	}
	err = w.walk()
	var f *finding
	if err != nil && !errors.As(err, &f) {
		return nil, err
	}
	if f == nil || f.code == Truncated {
		if f, err = w.conclude(f); err != nil {
			return nil, err
		}
	}
	return w.summary(f), nil
}

// parseGiven reads checkpoints that were kept elsewhere, and sorts them by size.
func parseGiven(text []byte) (all []givenNote, err error) {
	text = bytes.TrimRight(text, "\n")
	if len(text) == 0 {
		return nil, nil
	}
	r := newNoteReader(bytes.NewReader(append(bytes.Clone(text), "\n\n"...)))
	for {
		n, err := r.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("what was given is not a checkpoint: %w", err)
		}
		c, err := readGiven(n)
		if err != nil {
			return nil, fmt.Errorf("what was given is not a checkpoint: %w", err)
		}
		all = append(all, givenNote{bytes.Clone(n), c})
	}
	slices.SortStableFunc(all, func(a, b givenNote) int { return int(min(max(a.size-b.size, -1), 1)) })
	return all, nil
}

// readGiven reads a note of any log.
func readGiven(n []byte) (*checkpoint, error) {
	text, signatures, err := splitNote(n)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(n) {
		return nil, errNote
	}
	if err := checkSignatures(signatures); err != nil {
		return nil, err
	}
	c, _, err := parseHead(text)
	return c, err
}

type givenNote struct {
	note []byte
	*checkpoint
}

// A walker goes over a log from its first record to its last.
type walker struct {
	dir     string
	key     string      // in force
	keys    []string    // of the log, so far
	outside []givenNote // by size
	passed  int         // so many of outside were compared
	differ  *finding    // the first of them that is not of this log

	logs, notes []int // the numbers of the files
	last        int   // the largest of them

	tree   mark
	newest *checkpoint // that is good
	note   []byte
	torn   int64 // bytes of a torn tail

	removed int
	// For who proves something; nil where nobody does.
	seen  func(level int, index int64, h tlog.Hash) // a node is complete
	found func(seq int64, line []byte)              // a line was read
	noted func(n []byte, c *checkpoint) error       // a note is good
}

// list finds the files of the log.
func (w *walker) list() (err error) {
	if w.notes, err = numbered(w.dir, ".ckpt"); err != nil {
		return err
	}
	if w.logs, err = numbered(w.dir, ".log"); err != nil {
		return err
	}
	trees, err := numbered(w.dir, ".tree")
	if err != nil {
		return err
	}
	if len(w.logs)+len(w.notes) == 0 {
		return &fs.PathError{Op: "verify audit log", Path: w.dir, Err: fs.ErrNotExist}
	}
	w.last = slices.Max(slices.Concat(w.logs, w.notes, trees))
	return nil
}

func (w *walker) tampered(to int64, format string, args ...any) error {
	return &finding{Tampered, w.good(), to, fmt.Sprintf(format, args...)}
}

// malformed is for a line that has not the form or the number that it should have,
// which it or one before it has brought about.
func (w *walker) malformed(why error) error {
	var damage *DamageError
	errors.As(why, &damage)
	return w.tampered(w.tree.size+1, "%s at byte %d: %s", filepath.Base(damage.Segment), damage.Offset, damage.Reason)
}

// good is how many records the newest good checkpoint is for.
func (w *walker) good() int64 {
	if w.newest == nil {
		return 0
	}
	return w.newest.size
}

// walk goes over all segments.
func (w *walker) walk() error {
	switch {
	case w.key == "":
		return &finding{code: Unknown, problem: "no key is known by which this log could be verified"}
	case len(w.notes) == 0:
		return &finding{code: Unknown, problem: "the log is not signed: it has no checkpoint"}
	}
	w.keys = []string{w.key}
	w.compare(false)
	for number := 1; number <= w.last; number++ {
		if err := w.walkSegment(number); err != nil {
			return err
		}
	}
	if sealed := w.newest.segment; w.newest.sealed {
		if _, err := os.Lstat(segmentPath(w.dir, sealed+1)); errors.Is(err, fs.ErrNotExist) {
			return &finding{code: Truncated, problem: fmt.Sprintf("segment %d is sealed, and the one after it is gone", sealed)}
		}
	}
	return nil
}

func (w *walker) walkSegment(number int) error {
	w.tree.segment, w.tree.first, w.tree.bytes = number, w.tree.size, 0
	lines, err := w.open(number)
	if err != nil {
		return err
	}
	defer lines.Close()
	lastNotes := w.notes[len(w.notes)-1]
	if number > lastNotes {
		return w.unsigned(lines)
	}
	f, err := os.Open(notePath(w.dir, number))
	if errors.Is(err, fs.ErrNotExist) {
		return w.tampered(w.tree.size+1, "the checkpoints of segment %d are missing, and later ones are there", number)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	sealed, err := w.walkNotes(number, newNoteReader(f), lines, number == lastNotes)
	switch {
	case err != nil:
		return err
	case sealed:
		return w.sealed(lines)
	case number < lastNotes:
		return w.tampered(w.tree.size+1, "the seal of segment %d is missing, and later checkpoints are there", number)
	case w.newest == nil:
		return &finding{code: Unknown, problem: "the log is not signed: it has no whole checkpoint"}
	}
	return w.unsigned(lines)
}

// open opens what there is of a segment: its lines, else their tree.
func (w *walker) open(number int) (lineSource, error) {
	c, err := openCursor(segmentPath(w.dir, number), position{seq: w.tree.size})
	if err == nil {
		return &segmentLines{cursor: c}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.Open(treePath(w.dir, number))
	if err == nil && w.removed == number-1 {
		w.removed++
		return newSpanFile(f), nil
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if number < w.last {
		return nil, w.tampered(w.tree.size+1, "segment %d is missing, and later files are there", number)
	}
	return nil, &finding{code: Truncated, problem: fmt.Sprintf("segment %d is gone", number)}
}

// walkNotes goes over the checkpoints of a segment, and the lines that they are for.
func (w *walker) walkNotes(number int, notes *noteReader, lines lineSource, last bool) (sealed bool, err error) {
	for {
		n, err := notes.next()
		switch {
		case err == io.EOF:
			return sealed, nil
		case sealed:
			return false, w.tampered(w.tree.size, "something stands behind the seal of segment %d", number)
		case err == errTornNote && last:
			w.torn += int64(len(notes.n))
			return false, nil
		case err == errTornNote || err == errNote:
			return false, w.tampered(w.tree.size+1, "a checkpoint of segment %d is malformed, behind record %d", number, w.good())
		case err != nil:
			return false, err
		}
		c, err := w.check(number, n)
		if err != nil {
			return false, err
		}
		if err := w.readTo(c, lines); err != nil {
			return false, err
		}
		w.newest, w.note, sealed = c, append(w.note[:0], n...), c.sealed
		if w.noted != nil {
			if err := w.noted(n, c); err != nil {
				return false, err
			}
		}
		if c.next != "" {
			w.key = c.next
			w.keys = append(w.keys, c.next)
		}
	}
}

// check checks a checkpoint by itself.
func (w *walker) check(number int, n []byte) (*checkpoint, error) {
	c, err := readNote(n)
	if err != nil {
		return nil, w.tampered(w.tree.size+1, "a checkpoint of segment %d is malformed, behind record %d", number, w.good())
	}
	if w.newest == nil && !signedBy(n, w.key) {
		return nil, &finding{code: Unknown, problem: "the log is signed by another key"}
	}
	to := max(c.size, w.good()+1)
	switch {
	case verifyNote(n, w.key) != nil:
		return nil, w.tampered(to, "the checkpoint of %d records is not signed by the key that is due", c.size)
	case w.newest == nil && c.size != 0:
		return nil, w.tampered(to, "the first checkpoint of the log is missing")
	case c.segment != number || c.first != w.tree.first:
		return nil, w.tampered(to, "the checkpoint of %d records is for another segment", c.size)
	case c.size < w.tree.size:
		return nil, w.tampered(to, "the checkpoint of %d records stands behind one of %d", c.size, w.tree.size)
	}
	return c, nil
}

// readTo reads the lines that a checkpoint is for, and compares them.
func (w *walker) readTo(c *checkpoint, lines lineSource) error {
	for w.tree.size < c.size {
		err := lines.step(w)
		var damage *DamageError
		switch {
		case err == io.EOF && c.segment < w.last:
			return w.tampered(c.size, "segment %d ends before record %d, and later files are there", c.segment, w.tree.size)
		case err == io.EOF:
			return &finding{code: Truncated, problem: fmt.Sprintf("there are %d records, and a checkpoint says that there were %d", w.tree.size, c.size)}
		case errors.As(err, &damage):
			return w.malformed(damage)
		case err != nil:
			return err
		}
	}
	if w.tree.size != c.size || w.tree.root() != c.root || !lines.removed() && w.tree.bytes != c.bytes {
		return w.tampered(max(c.size, w.good()+1), "one of the records %d to %d is not what was signed", w.good(), max(c.size-1, w.good()))
	}
	return nil
}

// sealed checks that a segment ends where its seal says, and how.
func (w *walker) sealed(lines lineSource) error {
	if !bytes.Equal(w.newest.edge, w.tree.edge.bytes()) {
		return w.tampered(w.tree.size, "the seal of segment %d has another tree", w.newest.segment)
	}
	rest, err := lines.rest(w.tree.bytes)
	if err != nil {
		return err
	}
	if !lines.removed() && (rest.Bytes != w.newest.torn || rest.Bytes > 0 && rest.SHA256 != w.newest.tornSum) || lines.removed() && rest.Bytes > 0 {
		return w.tampered(w.tree.size+1, "segment %d goes on behind its seal with %d bytes, not %d, or with others", w.newest.segment, rest.Bytes, w.newest.torn)
	}
	return nil
}

// unsigned reads the lines for which there is no checkpoint yet.
func (w *walker) unsigned(lines lineSource) error {
	if lines.removed() {
		return w.tampered(w.tree.size+1, "segment %d was removed without a seal", w.tree.segment)
	}
	for {
		err := lines.step(w)
		var damage *DamageError
		switch {
		case err == io.EOF || errors.As(err, &damage) && w.tree.segment == w.last:
			return w.tail(lines, err)
		case errors.As(err, &damage):
			return w.malformed(damage)
		case err != nil:
			return err
		}
	}
}

// tail tells what a crash leaves at the end of the log from what it does not leave.
func (w *walker) tail(lines lineSource, why error) error {
	if w.tree.segment < w.last {
		return nil
	}
	s, ok := lines.(*segmentLines)
	if !ok {
		return nil
	}
	if why != io.EOF {
		more, err := s.cursor.lineFollows()
		if err != nil {
			return err
		}
		if more {
			return w.malformed(why)
		}
	}
	rest, err := lines.rest(w.tree.bytes)
	w.torn += rest.Bytes
	return err
}

// compare compares the tree with what was given from elsewhere, once it is as large.
// Where it grows in steps, it cannot be compared in between.
func (w *walker) compare(end bool) {
	for ; w.passed < len(w.outside); w.passed++ {
		g := w.outside[w.passed]
		switch {
		case g.size > w.tree.size && !end:
			return
		case w.differ != nil || g.size == w.tree.size && g.root == w.tree.root():
		case g.size > w.tree.size:
			w.differ = &finding{code: Truncated, problem: fmt.Sprintf("there are %d records, and a checkpoint that was given says that there were %d", w.tree.size, g.size)}
		default:
			w.differ = &finding{code: Truncated, problem: fmt.Sprintf("the first %d records are not those of a checkpoint that was given", g.size)}
		}
	}
}

// conclude finds what can be said only when all of the log was read; so is what was
// found so far.
func (w *walker) conclude(so *finding) (*finding, error) {
	w.compare(true)
	var unknown *finding
	for _, g := range w.outside {
		switch w.vouches(g) {
		case nil:
		case errUnknownKey:
			unknown = &finding{code: Unknown, problem: "a checkpoint that was given is of another log, or signed by no key of this one"}
		default:
			return &finding{Tampered, w.tree.size, w.tree.size, "the signature of a checkpoint that was given is wrong"}, nil
		}
	}
	switch {
	case unknown != nil:
		return unknown, nil
	case so != nil:
		return so, nil
	case w.differ != nil:
		return w.differ, nil
	case w.torn > 0:
		writing, err := Writing(w.dir)
		if err != nil || writing {
			return nil, err
		}
		return &finding{code: TornTail, problem: "the last write was cut off"}, nil
	}
	return nil, nil
}

// vouches finds the key of the log that has signed a note.
func (w *walker) vouches(g givenNote) error {
	for _, key := range w.keys {
		if strings.HasPrefix(key, g.origin+"+") && signedBy(g.note, key) {
			return verifyNote(g.note, key)
		}
	}
	return errUnknownKey
}

func (w *walker) summary(f *finding) *Report {
	r := &Report{
		Epochs: len(w.keys), Segments: len(w.logs), Removed: w.removed,
		Records: w.tree.size, Unsigned: w.tree.size - w.good(), Unvouched: w.tree.size, Newest: string(w.note),
	}
	if w.newest != nil {
		r.Origin = w.newest.origin
	}
	if f != nil {
		r.Code, r.Problem = f.code, f.problem
		if f.code == Tampered {
			r.From, r.To = &f.from, &f.to
		}
	}
	if n := len(w.outside); n > 0 && (r.Code == Good || r.Code == TornTail) {
		r.Unvouched -= w.outside[n-1].size
	}
	if r.Code == TornTail {
		r.TornBytes = w.torn
	}
	r.Verdict = verdicts[r.Code]
	return r
}
