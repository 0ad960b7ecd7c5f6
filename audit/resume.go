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

	"github.com/egressd/egressd/internal/durable"
)

// resume checks that the log holds together and makes it ready for more.
func (l *Log) resume() error {
	found, err := findFiles(l.dir, l.options.Brief)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	if len(found.logs) == 0 {
		return fmt.Errorf("open audit log: the segments in %s were removed just now: %w", l.dir, fs.ErrNotExist)
	}
	r := &resumption{Log: l, files: found, first: found.logs[0], last: lastNumber(found.logs)}
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
	synced := l.options.Brief && r.end.seq == r.signed && len(r.torn) == 0
	if l.segment, err = openSegment(l.dir, r.last, synced); err != nil || l.options.unsigned {
		return err
	}
	return r.appoint()
}

// A resumption is a log that is being opened.
type resumption struct {
	*Log
	files *files
	first int // the number of the first segment that is there
	last  int // of the last one

	from   int         // the number of the first one that has no seal
	signed int64       // lines are in a checkpoint
	newest *checkpoint // or nil where the log was not begun
	note   []byte
	notes  noteFile // of from
	due    string   // the key that signs next
}

// checkNumbers checks that no file is missing where later ones are there, as far as
// the folder was listed.
func (r *resumption) checkNumbers() error {
	if r.options.Brief && r.first == 1 {
		return nil
	}
	if err := r.files.consecutive(r.dir, r.past); err != nil {
		return err
	}
	before := 0
	for _, number := range r.files.notes {
		if number > before+1 { // else there is a block of each in between
			if is, err := r.past.has(number - 1); err != nil || !is {
				return errors.Join(err, missingNotes(r.dir, before+1))
			}
		}
		before = number
	}
	return nil
}

func missingNotes(dir string, number int) error {
	return &DamageError{notePath(dir, number), 0, "the checkpoints of the segment are missing, and later ones are there"}
}

const setAside = "egressd serve --accept-damage, which sets the log aside as it is and begins a new one"

// readNotes finds the newest checkpoint and the key that is due. A log that a crash
// has left without anything in it is begun anew.
func (r *resumption) readNotes() (begun bool, err error) {
	first := 1 // of those in files of their own
	if len(r.files.notes) > 0 {
		first = r.files.notes[0]
	}
	for r.from = lastNumber(r.files.notes); r.from >= first; r.from-- {
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
	case r.newest.sealed:
		r.notes = noteFile{path: notePath(r.dir, r.from+1)}
		if err := newMark(&r.tree, r.newest); err != nil {
			return false, &DamageError{notePath(r.dir, r.from), 0, err.Error()}
		}
		r.from++
	case r.from > 1:
		before, err := r.past.sealOf(r.from - 1)
		if err != nil {
			return false, err
		}
		if r.due == "" {
			r.due = before.next
		}
		if err := newMark(&r.tree, before); err != nil {
			return false, &DamageError{notePath(r.dir, r.from-1), 0, err.Error()}
		}
	default:
		r.tree = mark{segment: 1}
	}
	r.signed = r.newest.size
	if r.from > r.last {
		return false, r.short(r.end.seq)
	}
	return false, nil
}

// newMark makes of a seal the mark at the beginning of the segment after it.
func newMark(m *mark, sealed *checkpoint) (err error) {
	*m = mark{segment: sealed.segment + 1, first: sealed.size}
	m.edge, err = newEdge(sealed.size, sealed.edge)
	if err == nil && m.root() != sealed.root {
		err = errEdge
	}
	return err
}

// beginAnew begins a log in which there is nothing.
func (r *resumption) beginAnew() (begun bool, err error) {
	path := segmentPath(r.dir, r.first)
	info, err := os.Stat(path)
	if err != nil {
		return false, fmt.Errorf("open audit log: %w", err)
	}
	if r.last > 1 || info.Size() > 0 || r.files.removed {
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
	path := notePath(r.dir, number)
	see := func(n []byte, c *checkpoint) error {
		if before := r.newest; c.segment != number || before != nil && (c.size < before.size || before.sealed || c.origin != before.origin) {
			return errors.New("the checkpoints are not in order")
		}
		r.newest, r.note = c, append(r.note[:0], n...)
		if c.next != "" {
			r.due = c.next
		}
		return nil
	}
	var size int64
	if r.options.Brief {
		size, err = readNewest(path, see)
	}
	if err == nil && r.due == "" { // nor does the last one name it
		r.newest = nil
		size, err = readNotes(path, see)
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
		return missing(r.dir, r.from)
	}
	if r.options.Brief {
		r.end.seq = r.tree.size
	} else if err := r.checkEnds(); err != nil {
		return err
	}
	if r.notary == nil && r.options.unsigned {
		return nil
	}
	if r.end.seq != r.tree.size {
		return &DamageError{segmentPath(r.dir, r.from-1), 0, fmt.Sprintf("it ends with record %d, and its seal says that %d came before", r.end.seq-1, r.tree.size)}
	}
	return nil
}

// checkEnds looks at both ends of all segments that are sealed.
func (r *resumption) checkEnds() (err error) {
	if r.first > 1 {
		before, err := r.past.sealOf(r.first - 1)
		if err != nil {
			return err
		}
		r.end.seq = before.size
	}
	for number := r.first; number < r.from; number++ {
		if r.end.seq, err = endsOf(segmentPath(r.dir, number), r.end.seq); err != nil {
			return err
		}
	}
	return nil
}

// readLines reads the segments that have no seal, and compares them with the newest
// checkpoint.
func (r *resumption) readLines() error {
	for number := r.from; ; number++ {
		path := segmentPath(r.dir, number)
		r.end.offset = 0
		r.tree.segment, r.tree.first, r.tree.bytes = number, r.end.seq, 0
		if err := r.readSegment(path, number == r.last); err != nil {
			return err
		}
		if number == r.last {
			break
		}
		torn, err := describeTorn(path, r.end.offset, io.Discard)
		if err != nil {
			return fmt.Errorf("open audit log: %w", err)
		}
		r.sealed = append(r.sealed, seal{r.tree, torn})
	}
	if r.signed > r.end.seq && !r.options.unsigned {
		return r.short(r.end.seq)
	}
	torn, err := moveTorn(segmentPath(r.dir, r.last), r.end.offset)
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
	c, err := openCursor(path, r.end)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	defer c.Close()
	if err := r.agree(path); err != nil {
		return err
	}
	for {
		line, err := c.next()
		var damage *DamageError
		if errors.As(err, &damage) && last && c.seq >= r.signed {
			if more, readErr := c.lineFollows(); readErr != nil || more {
				return errors.Join(err, readErr)
			}
			return nil
		}
		if err == io.EOF {
			if c.offset == 0 && !last {
				return &DamageError{path, 0, "the segment holds no whole line, and a later one is there"}
			}
			return nil
		}
		if err != nil {
			return err
		}
		r.end = c.position
		if !r.options.unsigned {
			r.tree.add(line)
		}
		if err := r.agree(path); err != nil {
			return err
		}
	}
}

// agree compares the tree with the newest checkpoint once it is as large.
func (r *resumption) agree(path string) error {
	c := r.newest
	if c == nil || r.end.seq != c.size || r.tree.segment != c.segment {
		return nil
	}
	if r.tree.root() != c.root || r.tree.bytes != c.bytes || r.tree.first != c.first {
		return &DamageError{path, 0, fmt.Sprintf("its records up to %d are not those that were signed", c.size-1)}
	}
	return nil
}

// appoint makes the notary, seals what has ended, and begins an epoch.
func (r *resumption) appoint() error {
	folder := keyFolder(r.dir, r.options.Keys)
	_, missing := os.Lstat(keyPath(folder, r.newest.origin, ".next"))
	// A key takes its place only after the checkpoint that hands over to it was synced.
	synced := r.options.Brief && r.newest.next != "" && errors.Is(missing, fs.ErrNotExist)
	k, err := loadKeys(folder, r.newest.origin, r.due)
	if err != nil {
		return err
	}
	signedBy := k.now.public()
	if r.newest.next != "" {
		signedBy = k.previous
	}
	if err := verifyNote(r.note, signedBy); err != nil || !r.newest.isOf(signedBy) {
		return &DamageError{notePath(r.dir, r.newest.segment), 0, "its newest checkpoint is not signed by the key of this log"}
	}
	r.files.sweep(r.dir)
	if err := r.notes.reopen(synced); err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	r.notary = &notary{
		dir: r.dir, options: &r.options, keys: k, vouched: true,
		segment: r.from, file: r.notes, newest: r.newest, note: r.note, began: time.Now(),
	}
	r.notary.signed.Store(r.newest.size)
	l := r.Log
	if r.options.Brief {
		r.notary.proposeAhead()
	}
	err = l.sealWaiting()
	if err == nil && (r.newest.next == "" || l.notary.due(&l.tree)) { // else the key has signed nothing
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
	origin, originErr := originOf(dir)
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
	folder = keyFolder(dir, folder)
	return where, errors.Join(erase(keyPath(folder, origin, ".next")), erase(keyPath(folder, origin, ".key")), erase(keyPath(folder, origin, identityExtension)))
}
