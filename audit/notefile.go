package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressd/egressd/internal/durable"
)

func notePath(dir string, number int) string {
	return strings.TrimSuffix(segmentPath(dir, number), ".log") + ".ckpt"
}

func treePath(dir string, number int) string {
	return strings.TrimSuffix(segmentPath(dir, number), ".log") + ".tree"
}

// A noteFile is the file of the checkpoints of one segment, open for appending.
// After an error it is never written or synced again: the next note goes into a
// fresh file that replaces it.
type noteFile struct {
	path string
	f    *os.File // or nil: to be replaced
	size int64    // of the notes that are durable
}

// create makes the file without a note. Its name may not survive a crash yet.
func (n *noteFile) create() (err error) {
	if n.f, err = os.OpenFile(n.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, fileRW); err != nil {
		return fmt.Errorf("create the file of checkpoints: %w", err)
	}
	return nil
}

// append makes a note durable, and calls written once it is written, where it has to
// wait then.
func (n *noteFile) append(note []byte, written func()) error {
	whole := append(slices.Clone(note), '\n')
	if n.f == nil {
		err := n.replace(whole)
		if err == nil {
			written()
		}
		return err
	}
	err := linked(n.f, n.path)
	if err == nil {
		_, err = n.f.Write(whole)
	}
	if err == nil {
		written()
		err = syncData(n.f)
	}
	if err != nil {
		n.close()
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	n.size += int64(len(whole))
	return nil
}

// reopen opens the file for more where it ends with a whole note, and makes durable
// what it holds, unless that is synced. Otherwise the next note replaces it.
func (n *noteFile) reopen(synced bool) error {
	info, err := os.Stat(n.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != n.size {
		return nil
	}
	if err != nil {
		return err
	}
	if n.f, err = os.OpenFile(n.path, os.O_WRONLY|os.O_APPEND, 0); err != nil || synced {
		return err
	}
	if err := syncData(n.f); err != nil {
		n.close()
		return err
	}
	return nil
}

// replace writes the durable notes and one more into a fresh file.
func (n *noteFile) replace(whole []byte) error {
	before := make([]byte, n.size)
	if n.size > 0 {
		f, err := os.Open(n.path)
		if err != nil {
			return fmt.Errorf("write a checkpoint: %w", err)
		}
		_, err = io.ReadFull(f, before)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("write a checkpoint: %w", err)
		}
	}
	if err := durable.Replace(n.path, append(before, whole...), fileRW); err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	n.size += int64(len(whole))
	f, err := os.OpenFile(n.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	n.f = f
	return nil
}

func (n *noteFile) close() {
	if n.f != nil {
		_ = n.f.Close() // what is in it was synced, or is given up
		n.f = nil
	}
}

// linked checks that a file is still the one at its path: what goes into one that
// was removed or moved is lost.
func linked(f *os.File, path string) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(mine, there) {
		return fmt.Errorf("%s was replaced by another file", path)
	}
	return nil
}

// readNotes reads the notes of a file, without their signatures being checked. It
// returns how many bytes they take.
func readNotes(path string, do seeNote) (size int64, err error) {
	return readFileOf(path, readNotesOf, do)
}

// readNewest is readNotes for who needs the last note alone.
func readNewest(path string, do seeNote) (size int64, err error) {
	return readFileOf(path, readNewestOf, do)
}

type seeNote = func(n []byte, c *checkpoint) error

func readFileOf(path string, read func(namedReader, seeNote) (int64, error), do seeNote) (size int64, err error) {
	f, err := openFile(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return read(f, do)
}

// A namedReader is a file, or a part of one.
type namedReader interface {
	io.Reader
	Name() string
}

// readNotesOf is readNotes for a file that is open.
func readNotesOf(f namedReader, do seeNote) (size int64, err error) {
	r := newNoteReader(f)
	for {
		at := r.at
		n, err := r.next()
		if err == io.EOF || err == errTornNote {
			return r.at, nil
		}
		if err == nil {
			err = readInto(n, do)
		}
		if err != nil {
			return 0, &DamageError{f.Name(), at, err.Error()}
		}
	}
}

// readNewestOf is readNotesOf for who needs the last note alone: those before it are
// not looked into.
func readNewestOf(f namedReader, do seeNote) (size int64, err error) {
	r := newNoteReader(f)
	var newest []byte
	var at int64
	for {
		before := r.at
		n, err := r.next()
		if err == io.EOF || err == errTornNote {
			break
		}
		if err != nil {
			return 0, &DamageError{f.Name(), before, err.Error()}
		}
		newest, at = append(newest[:0], n...), before
	}
	if newest != nil {
		if err := readInto(newest, do); err != nil {
			return 0, &DamageError{f.Name(), at, err.Error()}
		}
	}
	return r.at, nil
}

func readInto(n []byte, do seeNote) error {
	c, err := readNote(n)
	if err != nil {
		return err
	}
	return do(n, c)
}

// originOf returns the origin of the log in dir.
func originOf(dir string) (origin string, err error) {
	all, err := listFiles(dir)
	if err != nil {
		return "", err
	}
	for _, number := range all.notes {
		f, err := openFile(notePath(dir, number))
		if err != nil {
			return "", err
		}
		n, err := newNoteReader(f).next()
		f.Close()
		if err != nil {
			continue
		}
		if c, err := readNote(n); err == nil {
			return c.origin, nil
		}
	}
	return "", fmt.Errorf("no checkpoint in %s: %w", filepath.Clean(dir), fs.ErrNotExist)
}
