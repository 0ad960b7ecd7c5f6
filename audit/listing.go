package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"syscall"
)

// list finds the files of the log.
func (w *walker) list() (err error) {
	all, err := listFiles(w.dir)
	if err != nil {
		return err
	}
	w.first = firstNumber(all.logs)
	if w.notes, err = there(w.dir, all.notes, notePath); err != nil {
		return err
	}
	if w.logs, err = there(w.dir, all.logs, segmentPath); err != nil {
		return err
	}
	if _, err := there(w.dir, all.trees, treePath); err != nil {
		return err
	}
	// After the others, which go only once they are in here.
	if err := w.past.read(); err != nil {
		return err
	}
	if w.behind, err = w.past.torn(); err != nil {
		return err
	}
	for number := range w.past.blocks {
		w.notes = append(w.notes, number+1)
	}
	slices.Sort(w.notes)
	w.notes = slices.Compact(w.notes)
	if len(w.logs)+len(w.notes) == 0 {
		return &fs.PathError{Op: "verify audit log", Path: w.dir, Err: fs.ErrNotExist}
	}
	if n := len(w.notes); n > 0 {
		torn, err := w.past.withoutNote(w.notes[n-1])
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

// there returns those of the numbers whose files can be opened.
func there(dir string, numbers []int, path func(string, int) string) ([]int, error) {
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

// isFile reports whether a regular file is at path. A dangling symbolic link counts as no file. A pipe or another special
// file is an error, since reading it could block for ever.
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

// openFile opens a file of a log for reading. The log may come from a stranger, so pipes, devices and other special files
// are errors.
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
func (r *remains) withoutNote(number int) (int64, error) {
	p, err := r.notes(number)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	notes := newNoteReader(p)
	switch _, err := notes.next(); err {
	case nil, errNote:
		return -1, nil
	case io.EOF, errTornNote:
		rest, err := io.Copy(io.Discard, io.NewSectionReader(p, int64(len(notes.n)), math.MaxInt64))
		return int64(len(notes.n)) + rest, err
	default:
		return 0, err
	}
}
