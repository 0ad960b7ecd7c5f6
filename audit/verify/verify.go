// Package verify checks logs and proves records, with the root key alone: neither a daemon nor a key that signs is
// needed. It shares no code with the writer but the formats. Its tests are those of package audit, which verify what
// the writer wrote.
//
//	report, err := verify.Log(dir, key, nil)
package verify

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/mod/sumdb/note"

	"github.com/egressd/egressd/audit/internal/format"
)

// The codes of a Report are the exit codes of egressd log verify. docs/reference/audit-format.md says which one is
// reported if several apply.
const (
	Good      = 0
	Tampered  = 1 // a record, a checkpoint or a file is not what was written
	Truncated = 2 // the end of the log is gone, or it is not the log of a checkpoint that was given
	TornTail  = 3 // a crash has cut off the last write, and nobody has recovered it yet
	Unknown   = 4 // nothing in the log is signed by the key
)

var verdicts = [...]string{"good", "tampered", "truncated", "torn", "unknown"}

// A Report is what Log has found.
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

// Stopped names the records among which the first wrong record of a tampered log is, and says that verification stopped there.
// It returns "" for any other log.
func (r *Report) Stopped() string {
	if r.From == nil {
		return ""
	}
	from, last := *r.From, max(*r.To-1, *r.From)
	where := fmt.Sprintf("the first wrong record is one of %d to %d", from, last)
	if from == last {
		where = fmt.Sprintf("the first wrong record is %d", from)
	}
	before := ""
	if from > 0 {
		before = fmt.Sprintf("records before %d are as they were signed, and ", from)
	}
	return fmt.Sprintf("%s; verification stopped there: %snobody has checked those behind %d", where, before, last)
}

// A finding is why a log is not good.
type finding struct {
	code     int
	from, to int64
	problem  string
}

func (f *finding) Error() string { return f.problem }

// Log reads the log in dir from its first record to its last, also while it is
// being written, and says whether it is what the owner of the root key has signed.
// Given are checkpoints that were kept elsewhere, one signed note after the
// other, with those of other logs among them; they may be empty. The records behind the newest of them are those that nothing
// outside vouches for. An error says that the log could not be read, that key or
// given are malformed, or that there is no log, with [fs.ErrNotExist]. It holds no
// more of the log in memory than a line.
func Log(dir, key string, given []byte) (*Report, error) { return verifyLog(dir, key, given, false) }

// Quick is [Log] for somebody who asks only whether records were changed. It checks the signatures that this rests on: of the
// newest checkpoint, of seals, and of checkpoints that name another key. So it does not find a checkpoint in between that
// somebody else signed. It takes a quarter of the time if there is a checkpoint for each few records. Without a key, Quick compares
// the records with the checkpoints beside them: the log is tampered if they differ, else the key is unknown.
func Quick(dir, key string, given []byte) (*Report, error) { return verifyLog(dir, key, given, true) }

func verifyLog(dir, key string, given []byte, quick bool) (*Report, error) {
	if key != "" {
		if err := format.CheckKey(key); err != nil {
			return nil, err
		}
	}
	outside, err := parseGiven(given)
	if err != nil {
		return nil, err
	}
	if key == "" {
		outside = nil
	}
	mine := ofLog(outside, key)
	for tries := verifyTries; ; tries-- {
		w := newWalker(dir, key)
		w.outside, w.quick = mine, quick
		report, err := w.verify()
		if tries == 1 || err == nil && report.Code == Good || !w.overtaken() {
			return report, err
		}
	}
}

// verifyTries is how often a log is read at most that gets shorter at its beginning
// meanwhile: what was listed and what is read can then be too far apart.
const verifyTries = 4

// overtaken reports whether the log begins with another segment than when it was listed.
func (w *walker) overtaken() bool {
	now, err := format.ListFiles(w.dir)
	return err == nil && format.FirstNumber(now.Logs) != w.first
}

// verify reads the log once.
func (w *walker) verify() (*Report, error) {
	if err := w.list(); err != nil {
		return nil, err
	}
	err := w.walk()
	if err == nil && w.quick {
		err = w.checkNewest()
	}
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
	r := format.NewNoteReader(bytes.NewReader(append(bytes.Clone(text), "\n\n"...)))
	for {
		n, err := r.Next()
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
	slices.SortStableFunc(all, func(a, b givenNote) int { return cmp.Compare(a.Size, b.Size) })
	return all, nil
}

// ofLog returns the checkpoints that are of the log that a key is for: a receiver may
// have those of several logs. Where none is, all are as they were, and so of another log.
func ofLog(all []givenNote, key string) []givenNote {
	mine := slices.DeleteFunc(slices.Clone(all), func(g givenNote) bool { return !g.IsOf(key) })
	if len(mine) == 0 {
		return all
	}
	return mine
}

// CheckpointsOf splits checkpoints that were kept elsewhere into those of the log with the given key and the others.
// given holds one signed note after another.
func CheckpointsOf(given []byte, key string) (mine, others []byte, err error) {
	all, err := parseGiven(given)
	for _, g := range all {
		if g.IsOf(key) {
			mine = append(append(mine, g.note...), '\n')
		} else {
			others = append(append(others, g.note...), '\n')
		}
	}
	return mine, others, err
}

// readGiven reads a note of any log.
func readGiven(n []byte) (*format.Checkpoint, error) {
	text, signatures, err := format.SplitNote(n)
	if err != nil {
		return nil, err
	}
	if err := format.CheckSignatures(signatures); err != nil {
		return nil, err
	}
	var unverified *note.UnverifiedNoteError
	if _, err := note.Open(n, nil); !errors.As(err, &unverified) {
		return nil, format.ErrNote
	}
	c, _, err := format.ParseHead(text)
	return c, err
}

type givenNote struct {
	note []byte
	*format.Checkpoint
}

// compare compares the tree with what was given from elsewhere, once it is as large.
// Where it grows in steps, it cannot be compared in between.
func (w *walker) compare(end bool) {
	for ; w.passed < len(w.outside); w.passed++ {
		g := w.outside[w.passed]
		switch {
		case g.Size > w.tree.Size && !end:
			return
		case w.differ != nil || g.Size == w.tree.Size && g.Root == w.tree.Root():
		case g.Size > w.tree.Size:
			w.differ = &finding{code: Truncated, problem: fmt.Sprintf("there are %d records, and a checkpoint that was given says that there were %d", w.tree.Size, g.Size)}
		default:
			w.differ = &finding{code: Truncated, problem: fmt.Sprintf("the first %d records are not those of a checkpoint that was given", g.Size)}
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
		case format.ErrUnknownKey:
			if g.IsOf(w.keys[0]) && g.Size > w.tree.Size {
				continue // the notes that name its key may have been cut off with the records
			}
			unknown = &finding{code: Unknown, problem: "a checkpoint that was given is of another log, or signed by no key of this one"}
		default:
			return &finding{Tampered, w.tree.Size, w.tree.Size, "the signature of a checkpoint that was given is wrong"}, nil
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
		writing, err := format.Writing(w.dir)
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
		if g.IsOf(key) && format.SignedBy(g.note, key) {
			return format.VerifyNote(g.note, key)
		}
	}
	return format.ErrUnknownKey
}

func (w *walker) summary(f *finding) *Report {
	r := &Report{
		Epochs: len(w.keys), Segments: len(w.logs), Removed: w.removed,
		Records: w.tree.Size, Unsigned: w.tree.Size - w.good(), Unvouched: w.tree.Size, Newest: string(w.note),
	}
	if w.newest != nil {
		r.Origin = w.newest.Origin
	}
	if f != nil {
		r.Code, r.Problem = f.code, f.problem
		if f.code == Tampered {
			r.From, r.To = &f.from, &f.to
		}
	}
	if n := len(w.outside); n > 0 && (r.Code == Good || r.Code == TornTail) {
		r.Unvouched -= w.outside[n-1].Size
	}
	if r.Code == TornTail {
		r.TornBytes = w.torn
	}
	r.Verdict = verdicts[r.Code]
	return r
}

// Origin returns the origin of the log in dir, or "" if the log has no checkpoint.
func Origin(dir string) string {
	origin, err := format.OriginOf(dir)
	if err != nil {
		return ""
	}
	return origin
}

// CheckKey reports whether text has the form of a public key of a log.
func CheckKey(text string) error { return format.CheckKey(text) }

// NewestCheckpoint returns the newest checkpoint that stands in the log in dir, which
// somebody else may be writing, without verifying it. An error wraps [fs.ErrNotExist]
// where there is none.
func NewestCheckpoint(dir string) (newest []byte, err error) {
	all, err := format.ListFiles(dir)
	if err != nil {
		return nil, err
	}
	for i := len(all.Notes) - 1; i >= 0 && newest == nil; i-- {
		_, err := format.ReadNotes(format.NotePath(dir, all.Notes[i]), func(n []byte, _ *format.Checkpoint) error {
			newest = append(newest[:0], n...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("no checkpoint in %s: %w", dir, fs.ErrNotExist)
	}
	return newest, nil
}
