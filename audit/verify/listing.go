package verify

import (
	"io/fs"
	"slices"

	"github.com/egressd/egressd/audit/internal/format"
)

// list finds the files of the log.
func (w *walker) list() (err error) {
	all, err := format.ListFiles(w.dir)
	if err != nil {
		return err
	}
	w.first = format.FirstNumber(all.Logs)
	if w.notes, err = there(w.dir, all.Notes, format.NotePath); err != nil {
		return err
	}
	if w.logs, err = there(w.dir, all.Logs, format.SegmentPath); err != nil {
		return err
	}
	if _, err := there(w.dir, all.Trees, format.TreePath); err != nil {
		return err
	}
	// After the others, which go only once they are in here.
	if err := w.past.Read(); err != nil {
		return err
	}
	if w.behind, err = w.past.Torn(); err != nil {
		return err
	}
	for number := range w.past.Blocks {
		w.notes = append(w.notes, number+1)
	}
	slices.Sort(w.notes)
	w.notes = slices.Compact(w.notes)
	if len(w.logs)+len(w.notes) == 0 {
		return &fs.PathError{Op: "verify audit log", Path: w.dir, Err: fs.ErrNotExist}
	}
	if n := len(w.notes); n > 0 {
		torn, err := w.past.WithoutNote(w.notes[n-1])
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
		is, err := format.IsFile(path(dir, number))
		if err != nil {
			return nil, err
		}
		if is {
			all = append(all, number)
		}
	}
	return all, nil
}
