package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/durable"
)

// Files are what the folder of a log holds: the numbers of its files, in their order.
type files struct {
	logs, notes, trees []int
	removed            bool     // there is the file of what was removed
	left               []string // what a crash has left of files that were being replaced
}

// listFiles lists the folder of a log, once.
func listFiles(dir string) (*files, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	var all files
	for _, name := range names {
		all.add(name)
	}
	for _, numbers := range [][]int{all.logs, all.notes, all.trees} {
		slices.Sort(numbers)
	}
	return &all, nil
}

func (f *files) add(name string) {
	for extension, numbers := range map[string]*[]int{".log": &f.logs, ".ckpt": &f.notes, ".tree": &f.trees} {
		if number := numberIn(name, extension); number > 0 {
			*numbers = append(*numbers, number)
			return
		}
	}
	switch {
	case name == removedName:
		f.removed = true
	case strings.HasPrefix(name, durable.Left):
		f.left = append(f.left, name)
	}
}

// numberIn returns the number in a file name with the given extension, or 0 for any other name.
func numberIn(name, extension string) int {
	digits, ok := strings.CutSuffix(name, extension)
	number, err := strconv.Atoi(digits)
	if !ok || err != nil || number < 1 || fmt.Sprintf("%08d", number) != digits {
		return 0
	}
	return number
}

// firstNumber returns the first of numbers, or 0.
func firstNumber(numbers []int) int {
	if len(numbers) == 0 {
		return 0
	}
	return numbers[0]
}

// lastNumber returns the last of numbers, or 0.
func lastNumber(numbers []int) int {
	if len(numbers) == 0 {
		return 0
	}
	return numbers[len(numbers)-1]
}

func (f *files) none() bool { return len(f.logs)+len(f.notes) == 0 && !f.removed }

// whole reports whether both files of what is left of a segment are there.
func (f *files) whole(number int) bool {
	_, notes := slices.BinarySearch(f.notes, number)
	_, tree := slices.BinarySearch(f.trees, number)
	return notes && tree
}

// consecutive checks that no segment is missing, but for the first ones that retention
// has removed.
func (f *files) consecutive(dir string, past *remains) error {
	if len(f.logs) == 0 {
		return nil
	}
	for number := 1; number < f.logs[0]; number++ {
		if _, is := slices.BinarySearch(f.trees, number); is {
			continue
		}
		// A segment missing from the list may have been pruned in the meantime.
		if is, err := past.wasRemoved(number); err != nil || !is {
			return errors.Join(err, missing(dir, number))
		}
	}
	for i, number := range f.logs {
		if number != f.logs[0]+i {
			return missing(dir, f.logs[0]+i)
		}
	}
	return nil
}

func missing(dir string, number int) error {
	return &DamageError{segmentPath(dir, number), 0, "the segment is missing, and a later one is there"}
}

// findFiles finds the files of a log, which is to be opened briefly or not: without
// listing its folder, or by that.
func findFiles(dir string, brief bool) (*files, error) {
	if brief {
		if all, err := endsOfFiles(dir); err != nil || all != nil {
			return all, err
		}
	}
	return listFiles(dir)
}

// endsOfFiles finds the first and the last number of the files of a log without listing its
// folder, for a log that is opened all the time: what is missing in between is not
// seen, and is for Verify. It returns nil where the first segment is not there.
func endsOfFiles(dir string) (*files, error) {
	last, err := lastOf(dir, segmentPath, 1)
	if err != nil || last == 0 {
		return nil, err
	}
	all := &files{logs: []int{1, last}}
	for _, from := range []int{last, max(last-1, 1), 1} { // with which they usually end
		if last, err = lastOf(dir, notePath, from); err != nil {
			return nil, err
		}
		if last > 0 {
			all.notes = []int{1, last}
			break
		}
	}
	return all, nil
}

// lastOf returns the number of the last file of a sequence that begins at from, or 0 if the first file is missing.
// It probes a few numbers instead of listing the folder, so it may miss a gap.
func lastOf(dir string, path func(dir string, number int) string, from int) (int, error) {
	there := func(number int) (bool, error) {
		_, err := os.Lstat(path(dir, number))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	if is, err := there(from); err != nil || !is {
		return 0, err
	}
	step := 1
	for ; ; step *= 2 {
		is, err := there(from + step)
		if err != nil {
			return 0, err
		}
		if !is {
			break
		}
		from += step
	}
	for step /= 2; step > 0; step /= 2 {
		is, err := there(from + step)
		if err != nil {
			return 0, err
		}
		if is {
			from += step
		}
	}
	return from, nil
}

// sweep removes what a crash has left of files that were being replaced.
func (f *files) sweep(dir string) {
	for _, name := range f.left {
		_ = os.Remove(filepath.Join(dir, name))
	}
}
