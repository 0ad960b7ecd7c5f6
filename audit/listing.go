package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// list finds the files of the log.
func (w *walker) list() (err error) {
	if w.notes, err = there(w.dir, ".ckpt", notePath); err != nil {
		return err
	}
	if w.logs, err = there(w.dir, ".log", segmentPath); err != nil {
		return err
	}
	if _, err := there(w.dir, ".tree", treePath); err != nil {
		return err
	}
	if len(w.logs)+len(w.notes) == 0 {
		return &fs.PathError{Op: "verify audit log", Path: w.dir, Err: fs.ErrNotExist}
	}
	if n := len(w.notes); n > 0 {
		torn, err := withoutNote(notePath(w.dir, w.notes[n-1]))
		if err != nil {
			return err
		}
		if torn >= 0 {
			w.notes, w.torn = w.notes[:n-1], torn
		}
	}
	if all := slices.Concat(w.logs, w.notes); len(all) > 0 {
		w.last = slices.Max(all)
	}
	return nil
}

// there returns the numbers of the files with an extension that can be opened.
func there(dir, extension string, path func(string, int) string) ([]int, error) {
	numbers, err := numbered(dir, extension)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, number := range numbers {
		is, err := isFile(path(dir, number))
		if err != nil {
			return nil, err
		}
		if is {
			all = append(all, number)
		}
	}
	return all, nil
}

// isFile reports whether there is a file at path; a symbolic link that leads nowhere
// is none. What is neither, like a pipe, which would keep its reader for ever, is an
// error.
func isFile(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("%s is not a file, but %s", path, info.Mode().Type())
	}
	return true, nil
}

// openFile opens a file of a log, which may be somebody else's, for reading. What is no
// file, like a pipe that nobody ever writes to or a device without end, is an error.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // or the open of a pipe waits for a writer
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file, but %s", path, info.Mode().Type())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// withoutNote returns the size of a file that ends before its first checkpoint does,
// and -1 for others.
func withoutNote(path string) (int64, error) {
	f, err := openFile(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	switch _, err := newNoteReader(f).next(); err {
	case nil, errNote:
		return -1, nil
	case io.EOF, errTornNote:
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	default:
		return 0, err
	}
}
