package verify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/egressd/egressd/audit/internal/format"
)

// A walker goes over a log from its first record to its last.
type walker struct {
	dir     string
	key     string      // in force
	keys    []string    // of the log, so far
	outside []givenNote // by size
	passed  int         // so many of outside were compared
	quick   bool        // see [Quick]
	differ  *finding    // the first of them that is not of this log

	logs, notes []int // the numbers of the files
	last        int   // the largest of them
	first       int   // the first segment that the folder had; 0 where it had none

	tree   format.Mark
	checks int                // checkpoints that were read
	signed int64              // the size of the last one
	newest *format.Checkpoint // the last one that the lines are there for, and agree with
	note   []byte
	short  *finding // where the lines end before the newest checkpoint
	torn   int64    // bytes of a torn tail

	past    *format.Pruned
	behind  bool // behind the blocks of what was removed stands what is none
	removed int
	// For who proves something; nil where nobody does.
	seen  func(level int, index int64, h tlog.Hash)  // a node is complete
	found func(seq int64, line []byte)               // a line was read
	noted func(n []byte, c *format.Checkpoint) error // a note is good
}

func newWalker(dir, key string) *walker {
	return &walker{dir: dir, key: key, past: &format.Pruned{Dir: dir}}
}

func (w *walker) tampered(to int64, format string, args ...any) error {
	return &finding{Tampered, w.good(), to, fmt.Sprintf(format, args...)}
}

// malformed reports a line with a wrong form or number. This line or an earlier one was changed.
func (w *walker) malformed(why error) error {
	var damage *format.DamageError
	errors.As(why, &damage)
	return w.tampered(w.tree.Size+1, "%s at byte %d: %s", filepath.Base(damage.Segment), damage.Offset, damage.Reason)
}

// good is how many records the newest good checkpoint is for.
func (w *walker) good() int64 {
	if w.newest == nil {
		return 0
	}
	return w.newest.Size
}

func unknownKey() error {
	return &finding{code: Unknown, problem: "no key is known by which this log could be verified"}
}

// walk goes over all segments.
func (w *walker) walk() error {
	switch {
	case w.key == "" && !w.quick:
		return unknownKey()
	case len(w.notes) == 0:
		return &finding{code: Unknown, problem: "the log is not signed: it has no checkpoint"}
	}
	w.keys = []string{w.key}
	w.compare(false)
	blocks, lastNotes := len(w.past.Blocks), format.LastNumber(w.notes)
	for number := 0; number <= w.last; number++ {
		if number > 0 {
			if err := w.walkSegment(number); err != nil {
				return err
			}
		}
		if w.behind && number == blocks && number <= lastNotes {
			return w.tampered(w.tree.Size+1, "what stands in %s behind segment %d is no part of what was removed", format.RemovedName, number)
		}
	}
	if w.short != nil {
		return w.short
	}
	if sealed := w.newest.Segment; w.newest.Sealed {
		if _, err := os.Stat(format.SegmentPath(w.dir, sealed+1)); errors.Is(err, fs.ErrNotExist) {
			return &finding{code: Truncated, problem: fmt.Sprintf("segment %d is sealed, and the one after it is gone", sealed)}
		}
	}
	return nil
}

func (w *walker) walkSegment(number int) error {
	w.tree.Segment, w.tree.First, w.tree.Bytes = number, max(w.tree.Size, w.signed), 0
	lines, err := w.open(number)
	if err != nil {
		return err
	}
	defer lines.Close()
	lastNotes := w.notes[len(w.notes)-1]
	if number > lastNotes {
		return w.unsigned(lines)
	}
	f, err := w.past.Notes(number)
	if errors.Is(err, fs.ErrNotExist) {
		return w.tampered(w.tree.Size+1, "the checkpoints of segment %d are missing, and later ones are there", number)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	sealed, err := w.walkNotes(number, format.NewNoteReader(f), lines, number == lastNotes)
	switch {
	case err != nil:
		return err
	case sealed:
		return w.sealed(lines)
	case number < lastNotes:
		return w.tampered(w.tree.Size+1, "the seal of segment %d is missing, and later checkpoints are there", number)
	}
	return w.unsigned(lines)
}

// open opens what there is of a segment: its lines, else their tree.
func (w *walker) open(number int) (lineSource, error) {
	c, err := format.OpenCursor(format.SegmentPath(w.dir, number), format.Position{Seq: w.tree.Size})
	if err == nil {
		return &segmentLines{cursor: c}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// Looked for only now: retention may have put it there in the meantime.
	p, err := w.past.Tree(number)
	if err == nil && w.removed == number-1 {
		w.removed++
		return newSpanFile(p), nil
	}
	if err == nil {
		err = p.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return noLines{}, w.cut(number, "segment %d is gone", number)
}

// cut reports that lines are missing from a segment on. If the log ends there, the lines before the gap are
// good, and the walk goes on to read the checkpoints.
func (w *walker) cut(segment int, format string, args ...any) error {
	if len(w.logs) > 0 && w.logs[len(w.logs)-1] > segment {
		return w.tampered(w.tree.Size+1, "segment %d lacks lines from record %d on, and later segments are there", segment, w.tree.Size)
	}
	if w.short == nil {
		w.short = &finding{code: Truncated, problem: fmt.Sprintf(format, args...)}
	}
	return nil
}

// walkNotes goes over the checkpoints of a segment, and the lines that they are for.
func (w *walker) walkNotes(number int, notes *format.NoteReader, lines lineSource, last bool) (sealed bool, err error) {
	for {
		n, err := notes.Next()
		switch {
		case err == io.EOF:
			return sealed, nil
		case sealed:
			return false, w.tampered(w.tree.Size, "something stands behind the seal of segment %d", number)
		case err == format.ErrTornNote && last:
			w.torn += int64(len(notes.N))
			return false, nil
		case err == format.ErrTornNote || err == format.ErrNote:
			return false, w.tampered(w.tree.Size+1, "a checkpoint of segment %d is malformed, behind record %d", number, w.good())
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
		sealed = c.Sealed
		if err := w.reached(n, c); err != nil {
			return false, err
		}
		if c.Next != "" {
			w.key = c.Next
			w.keys = append(w.keys, c.Next)
		}
	}
}

// reached takes note of a checkpoint that the lines agree with, as far as they are
// there.
func (w *walker) reached(n []byte, c *format.Checkpoint) error {
	w.checks++
	w.signed = c.Size
	if w.short != nil {
		return nil
	}
	w.newest, w.note = c, append(w.note[:0], n...)
	if w.noted == nil {
		return nil
	}
	return w.noted(n, c)
}

// check checks a checkpoint by itself.
func (w *walker) check(number int, n []byte) (*format.Checkpoint, error) {
	c, err := format.ReadNote(n)
	if err != nil {
		return nil, w.tampered(w.tree.Size+1, "a checkpoint of segment %d is malformed, behind record %d", number, w.good())
	}
	if w.checks == 0 && w.key != "" && !format.SignedBy(n, w.key) {
		return nil, &finding{code: Unknown, problem: "the log is signed by another key"}
	}
	to := max(c.Size, w.good()+1)
	switch {
	case w.key != "" && (!c.IsOf(w.key) || w.counts(c) && format.VerifyNote(n, w.key) != nil):
		return nil, w.tampered(to, "the checkpoint of %d records is not signed by the key that is due", c.Size)
	case w.checks == 0 && c.Size != 0:
		return nil, w.tampered(to, "the first checkpoint of the log is missing")
	case c.Segment != number || c.First != w.tree.First:
		return nil, w.tampered(to, "the checkpoint of %d records is for another segment", c.Size)
	case c.Size < w.signed:
		return nil, w.tampered(to, "the checkpoint of %d records stands behind one of %d", c.Size, w.signed)
	}
	return c, nil
}

// counts reports whether the signature of a checkpoint is checked as the checkpoint is read.
func (w *walker) counts(c *format.Checkpoint) bool {
	return !w.quick || w.checks == 0 || c.Sealed || c.Next != ""
}

// checkNewest checks the signature of the newest checkpoint, on which all records before it rest.
func (w *walker) checkNewest() error {
	switch {
	case w.keys[0] == "":
		return unknownKey()
	case w.newest.Next != "" || format.VerifyNote(w.note, w.key) == nil:
		return nil
	}
	return &finding{Tampered, 0, w.newest.Size, "the newest checkpoint is not signed by the key that is due"}
}

// readTo reads the lines that a checkpoint is for, and compares them.
func (w *walker) readTo(c *format.Checkpoint, lines lineSource) error {
	for w.short == nil && w.tree.Size < c.Size {
		err := lines.step(w)
		var damage *format.DamageError
		switch {
		case err == io.EOF:
			if err := w.cut(c.Segment, "there are %d records, and a checkpoint says that there were %d", w.tree.Size, c.Size); err != nil {
				return err
			}
		case errors.As(err, &damage):
			return w.malformed(damage)
		case err != nil:
			return err
		case lines.removed() && w.tree.Size != c.Size:
			return w.tampered(c.Size, "segment %d was removed, and what is left of it is not for its checkpoints", c.Segment)
		}
	}
	if w.short != nil {
		return nil
	}
	if w.tree.Size != c.Size || w.tree.Root() != c.Root || !lines.removed() && w.tree.Bytes != c.Bytes {
		from, last := w.good(), max(c.Size-1, w.good())
		if from == last {
			return w.tampered(last+1, "record %d is not what was signed", last)
		}
		return w.tampered(last+1, "one of the records %d to %d is not what was signed", from, last)
	}
	return nil
}

// sealed checks that a segment ends where its seal says, and how.
func (w *walker) sealed(lines lineSource) error {
	if w.short != nil {
		return nil
	}
	if !bytes.Equal(w.newest.Edge, w.tree.Edge.Bytes()) {
		return w.tampered(w.tree.Size, "the seal of segment %d has another tree", w.newest.Segment)
	}
	rest, err := lines.rest(w.tree.Bytes)
	if err != nil {
		return err
	}
	torn, sum := w.newest.Torn, ""
	if lines.removed() {
		torn = 0
	} else if rest == torn && torn > 0 { // else there is no end to what may stand there
		if sum, err = lines.sum(w.tree.Bytes); err != nil {
			return err
		}
	}
	if rest != torn || torn > 0 && sum != w.newest.TornSum {
		return w.tampered(w.tree.Size+1, "segment %d goes on behind its seal with %d bytes, not %d, or with others", w.newest.Segment, rest, w.newest.Torn)
	}
	return nil
}

// unsigned reads the lines for which there is no checkpoint yet.
func (w *walker) unsigned(lines lineSource) error {
	if w.short != nil {
		return nil
	}
	if lines.removed() {
		return w.tampered(w.tree.Size+1, "segment %d was removed without a seal", w.tree.Segment)
	}
	for {
		err := lines.step(w)
		var damage *format.DamageError
		switch {
		case err == io.EOF || errors.As(err, &damage) && w.tree.Segment == w.last:
			return w.tail(lines, err)
		case errors.As(err, &damage):
			return w.malformed(damage)
		case err != nil:
			return err
		}
	}
}

// tail decides whether a crash explains the end of the log.
func (w *walker) tail(lines lineSource, why error) error {
	if w.tree.Segment < w.last {
		return nil
	}
	s, ok := lines.(*segmentLines)
	if !ok {
		return nil
	}
	if why != io.EOF {
		more, err := s.cursor.LineFollows()
		if err != nil {
			return err
		}
		if more {
			return w.malformed(why)
		}
	}
	rest, err := lines.rest(w.tree.Bytes)
	w.torn += rest
	return err
}
