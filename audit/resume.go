package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/egressd/egressd/audit/internal/format"
	"github.com/egressd/egressd/internal/durable"
)

// resume checks that the log holds together and makes it ready for more.
func (l *Log) resume() error {
	found, err := format.ListFiles(l.dir)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	if len(found.Logs) == 0 {
		return fmt.Errorf("open audit log: the segments in %s were removed just now: %w", l.dir, fs.ErrNotExist)
	}
	r := &resumption{Log: l, files: found, first: found.Logs[0], last: format.LastNumber(found.Logs)}
	if err := r.checkNumbers(); err != nil {
		return err
	}
	if l.options.unsigned {
		r.signed = 1<<63 - 1
	} else if begun, err := r.readNotes(); err != nil || begun {
		return err
	}
	if err := r.checkSealed(); err != nil {
		return err
	}
	if err := r.readLines(); err != nil {
		return err
	}
	// The records of a checkpoint were durable before the checkpoint was signed.
	synced := l.options.Brief && r.end.Seq == r.signed && len(r.torn) == 0
	if l.segment, err = openSegment(l.dir, r.last, synced); err != nil || l.options.unsigned {
		return err
	}
	return r.appoint()
}

// A resumption is a log that is being opened.
type resumption struct {
	*Log
	files *format.Files
	first int // the number of the first segment that is there
	last  int // of the last one

	from   int                // the number of the first one that has no seal
	signed int64              // lines are in a checkpoint
	newest *format.Checkpoint // or nil where the log was not begun
	note   []byte
	notes  noteFile // of from
	due    string   // the key that signs next
}

// checkNumbers checks that no file is missing where later ones are there.
func (r *resumption) checkNumbers() error {
	if err := r.files.Consecutive(r.dir, r.past); err != nil {
		return err
	}
	before := 0
	for _, number := range r.files.Notes {
		if number > before+1 { // else there is a block of each in between
			if is, err := r.past.Has(number - 1); err != nil || !is {
				return errors.Join(err, missingNotes(r.dir, before+1))
			}
		}
		before = number
	}
	return nil
}

func missingNotes(dir string, number int) error {
	return &format.DamageError{Segment: format.NotePath(dir, number), Offset: 0, Reason: "the checkpoints of the segment are missing, and later ones are there"}
}

const setAside = "egressd serve --accept-damage, which sets the log aside as it is and begins a new one"

// readNotes finds the newest checkpoint and the key that is due. A log that a crash
// has left without anything in it is begun anew.
func (r *resumption) readNotes() (begun bool, err error) {
	first := 1 // of those in files of their own
	if len(r.files.Notes) > 0 {
		first = r.files.Notes[0]
	}
	for r.from = format.LastNumber(r.files.Notes); r.from >= first; r.from-- {
		if err := r.readNoteFile(r.from); err != nil {
			return false, err
		}
		if r.newest != nil {
			break
		}
	}
	switch {
	case r.newest == nil && first > 1:
		return false, missingNotes(r.dir, first-1)
	case r.newest == nil:
		return r.beginAnew()
	case r.newest.Sealed:
		r.notes = noteFile{path: format.NotePath(r.dir, r.from+1)}
		if err := format.NewMark(&r.tree, r.newest); err != nil {
			return false, &format.DamageError{Segment: format.NotePath(r.dir, r.from), Offset: 0, Reason: err.Error()}
		}
		r.from++
	case r.from > 1:
		before, err := r.past.SealOf(r.from - 1)
		if err != nil {
			return false, err
		}
		if r.due == "" {
			r.due = before.Next
		}
		if err := format.NewMark(&r.tree, before); err != nil {
			return false, &format.DamageError{Segment: format.NotePath(r.dir, r.from-1), Offset: 0, Reason: err.Error()}
		}
	default:
		r.tree = format.Mark{Segment: 1}
	}
	r.signed = r.newest.Size
	if r.from > r.last {
		return false, r.short(r.end.Seq)
	}
	return false, nil
}

// beginAnew begins a log in which there is nothing.
func (r *resumption) beginAnew() (begun bool, err error) {
	path := format.SegmentPath(r.dir, r.first)
	info, err := os.Stat(path)
	if err != nil {
		return false, fmt.Errorf("open audit log: %w", err)
	}
	if r.last > 1 || info.Size() > 0 || r.files.Removed {
		return false, &Refusal{"the audit log in " + r.dir + " has no checkpoint: it was not signed, or its checkpoints were removed", "restore the checkpoints from a copy, or " + setAside}
	}
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("open audit log: %w", err)
	}
	return true, r.begin()
}

// readNoteFile reads the checkpoints of a segment as far as they matter here. Only
// the audit reads all of them.
func (r *resumption) readNoteFile(number int) (err error) {
	path := format.NotePath(r.dir, number)
	see := func(n []byte, c *format.Checkpoint) error {
		if before := r.newest; c.Segment != number || before != nil && (c.Size < before.Size || before.Sealed || c.Origin != before.Origin) {
			return errors.New("the checkpoints are not in order")
		}
		r.newest, r.note = c, append(r.note[:0], n...)
		if c.Next != "" {
			r.due = c.Next
		}
		return nil
	}
	var size int64
	if r.options.Brief {
		size, err = format.ReadNewest(path, see)
	}
	if err == nil && r.due == "" { // nor does the last one name it
		r.newest = nil
		size, err = format.ReadNotes(path, see)
	}
	r.notes = noteFile{path: path, size: size}
	return err
}

func (r *resumption) short(lines int64) error {
	return &Refusal{fmt.Sprintf("the audit log in %s has %d records, and a checkpoint says that there were %d", r.dir, lines, r.signed),
		"restore the newest state of the log, or " + setAside}
}

// checkSealed looks at both ends of the segments that are sealed.
func (r *resumption) checkSealed() error {
	if r.options.unsigned {
		r.from = r.last
	}
	if r.first > r.from {
		return format.Missing(r.dir, r.from)
	}
	if r.options.Brief {
		r.end.Seq = r.tree.Size
	} else if err := r.checkEnds(); err != nil {
		return err
	}
	if r.notary == nil && r.options.unsigned {
		return nil
	}
	if r.end.Seq != r.tree.Size {
		return &format.DamageError{Segment: format.SegmentPath(r.dir, r.from-1), Offset: 0, Reason: fmt.Sprintf("it ends with record %d, and its seal says that %d came before", r.end.Seq-1, r.tree.Size)}
	}
	return nil
}

// checkEnds looks at both ends of all segments that are sealed.
func (r *resumption) checkEnds() (err error) {
	if r.first > 1 {
		before, err := r.past.SealOf(r.first - 1)
		if err != nil {
			return err
		}
		r.end.Seq = before.Size
	}
	for number := r.first; number < r.from; number++ {
		if r.end.Seq, err = endsOf(format.SegmentPath(r.dir, number), r.end.Seq); err != nil {
			return err
		}
	}
	return nil
}

// readLines reads the segments that have no seal, and compares them with the newest
// checkpoint.
func (r *resumption) readLines() error {
	for number := r.from; ; number++ {
		path := format.SegmentPath(r.dir, number)
		r.end.Offset = 0
		r.tree.Segment, r.tree.First, r.tree.Bytes = number, r.end.Seq, 0
		if err := r.readSegment(path, number == r.last); err != nil {
			return err
		}
		if number == r.last {
			break
		}
		torn, err := format.DescribeTorn(path, r.end.Offset, io.Discard)
		if err != nil {
			return fmt.Errorf("open audit log: %w", err)
		}
		r.sealed = append(r.sealed, seal{r.tree, torn})
	}
	if r.signed > r.end.Seq && !r.options.unsigned {
		return r.short(r.end.Seq)
	}
	torn, err := moveTorn(format.SegmentPath(r.dir, r.last), r.end.Offset)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	if torn.Bytes > 0 {
		r.torn = append(r.torn, torn)
	}
	return nil
}

// readSegment reads the lines of one segment. Bytes behind the newest checkpoint of the last segment may be torn.
func (r *resumption) readSegment(path string, last bool) error {
	c, err := format.OpenCursor(path, r.end)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	defer c.Close()
	if err := r.agree(path); err != nil {
		return err
	}
	for {
		line, err := c.Next()
		if _, ok := errors.AsType[*format.DamageError](err); ok && last && c.Seq >= r.signed {
			if more, readErr := c.LineFollows(); readErr != nil || more {
				return errors.Join(err, readErr)
			}
			return nil
		}
		if err == io.EOF {
			if c.Offset == 0 && !last {
				return &format.DamageError{Segment: path, Offset: 0, Reason: "the segment holds no whole line, and a later one is there"}
			}
			return nil
		}
		if err != nil {
			return err
		}
		r.end = c.Position
		if !r.options.unsigned {
			r.tree.Add(line)
		}
		if err := r.agree(path); err != nil {
			return err
		}
	}
}

// agree compares the tree with the newest checkpoint once it is as large.
func (r *resumption) agree(path string) error {
	c := r.newest
	if c == nil || r.end.Seq != c.Size || r.tree.Segment != c.Segment {
		return nil
	}
	if r.tree.Root() != c.Root || r.tree.Bytes != c.Bytes || r.tree.First != c.First {
		return &format.DamageError{Segment: path, Offset: 0, Reason: fmt.Sprintf("its records up to %d are not those that were signed", c.Size-1)}
	}
	return nil
}

// appoint makes the notary, seals what has ended, and begins an epoch.
func (r *resumption) appoint() error {
	folder := keyFolder(r.dir, r.options.Keys)
	_, missing := os.Lstat(keyPath(folder, r.newest.Origin, ".next"))
	// A key takes its place only after the checkpoint that hands over to it was synced.
	synced := r.options.Brief && r.newest.Next != "" && errors.Is(missing, fs.ErrNotExist)
	k, err := loadKeys(folder, r.newest.Origin, r.due)
	if err != nil {
		return err
	}
	signedBy := k.now.public()
	if r.newest.Next != "" {
		signedBy = k.previous
	}
	if err := format.VerifyNote(r.note, signedBy); err != nil || !r.newest.IsOf(signedBy) {
		return &format.DamageError{Segment: format.NotePath(r.dir, r.newest.Segment), Offset: 0, Reason: "its newest checkpoint is not signed by the key of this log"}
	}
	r.files.Sweep(r.dir)
	if err := r.notes.reopen(synced); err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	r.notary = &notary{
		dir: r.dir, options: &r.options, keys: k, vouched: true,
		segment: r.from, file: r.notes, newest: r.newest, note: r.note, began: time.Now(),
	}
	r.notary.signed.Store(r.newest.Size)
	l := r.Log
	if r.options.Brief {
		r.notary.proposeAhead()
	}
	err = l.sealWaiting()
	if err == nil && (r.newest.Next == "" || l.notary.due(&l.tree)) { // else the key has signed nothing
		err = l.notary.sign(&l.tree, true)
	}
	if err == nil {
		err = l.notary.ready()
	}
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	l.retain()
	return nil
}

// SetAside moves all files of the log in dir into a new folder in it, where they
// stay as evidence, and destroys its keys in the folder of keys, so that nothing more
// is signed for it. It returns that folder. [Create] makes a new log then. An error
// wraps [ErrLocked] where the log is being written.
func SetAside(dir, folder string) (where string, err error) {
	lock, err := lockDirectory(dir)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	where, err = os.MkdirTemp(dir, "damaged-"+time.Now().UTC().Format("20060102-150405")+"-")
	if err != nil {
		return "", fmt.Errorf("set the audit log aside: %w", err)
	}
	origin, originErr := format.OriginOf(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("set the audit log aside: %w", err)
	}
	// The newest first: what is left by a crash is not taken for a whole log.
	for i := len(entries) - 1; i >= 0; i-- {
		name := entries[i].Name()
		if name == "lock" || strings.HasPrefix(name, "damaged-") {
			continue
		}
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(where, name)); err != nil {
			return "", fmt.Errorf("set the audit log aside: %w", err)
		}
	}
	if err := errors.Join(durable.SyncFolder(where), durable.SyncFolder(dir)); err != nil {
		return "", fmt.Errorf("set the audit log aside: %w", err)
	}
	if originErr != nil {
		if errors.Is(originErr, fs.ErrNotExist) {
			return where, nil
		}
		return where, originErr
	}
	return where, eraseKeys(dir, folder, origin)
}

func eraseKeys(dir, folder, origin string) error {
	folder = keyFolder(dir, folder)
	return errors.Join(erase(keyPath(folder, origin, ".next")), erase(keyPath(folder, origin, ".key")))
}

// Discard removes a log that [Create] has just made, with its keys: it has no record, and is closed.
func Discard(dir, folder string) error {
	lock, err := lockDirectory(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	found, err := format.ListFiles(dir)
	if err != nil {
		return fmt.Errorf("discard the audit log: %w", err)
	}
	for _, number := range found.Logs {
		if info, err := os.Stat(format.SegmentPath(dir, number)); err != nil || info.Size() > 0 {
			return errors.Join(fmt.Errorf("discard the audit log: %s is in use", dir), err)
		}
	}
	origin, err := format.OriginOf(dir)
	if err != nil {
		return fmt.Errorf("discard the audit log: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("discard the audit log: %w", err)
	}
	for _, e := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
	}
	return errors.Join(err, os.Remove(dir), eraseKeys(dir, folder, origin))
}
