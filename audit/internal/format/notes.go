package format

import (
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
)

// ReadNotes reads the notes of a file, without their signatures being checked. It
// returns how many bytes they take.
func ReadNotes(path string, do seeNote) (size int64, err error) {
	return readFileOf(path, ReadNotesOf, do)
}

// ReadNewest is ReadNotes for who needs the last note alone.
func ReadNewest(path string, do seeNote) (size int64, err error) {
	return readFileOf(path, readNewestOf, do)
}

type seeNote = func(n []byte, c *Checkpoint) error

func readFileOf(path string, read func(namedReader, seeNote) (int64, error), do seeNote) (size int64, err error) {
	f, err := OpenFile(path)
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

// ReadNotesOf is ReadNotes for a file that is open.
func ReadNotesOf(f namedReader, do seeNote) (size int64, err error) {
	r := NewNoteReader(f)
	for {
		at := r.At
		n, err := r.Next()
		if err == io.EOF || err == ErrTornNote {
			return r.At, nil
		}
		if err == nil {
			err = readInto(n, do)
		}
		if err != nil {
			return 0, &DamageError{f.Name(), at, err.Error()}
		}
	}
}

// readNewestOf is ReadNotesOf for who needs the last note alone: those before it are
// not looked into.
func readNewestOf(f namedReader, do seeNote) (size int64, err error) {
	r := NewNoteReader(f)
	var newest []byte
	var at int64
	for {
		before := r.At
		n, err := r.Next()
		if err == io.EOF || err == ErrTornNote {
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
	return r.At, nil
}

func readInto(n []byte, do seeNote) error {
	c, err := ReadNote(n)
	if err != nil {
		return err
	}
	return do(n, c)
}

// OriginOf returns the origin of the log in dir.
func OriginOf(dir string) (origin string, err error) {
	all, err := ListFiles(dir)
	if err != nil {
		return "", err
	}
	for _, number := range all.Notes {
		f, err := OpenFile(NotePath(dir, number))
		if err != nil {
			return "", err
		}
		n, err := NewNoteReader(f).Next()
		f.Close()
		if err != nil {
			continue
		}
		if c, err := ReadNote(n); err == nil {
			return c.Origin, nil
		}
	}
	return "", fmt.Errorf("no checkpoint in %s: %w", filepath.Clean(dir), fs.ErrNotExist)
}
