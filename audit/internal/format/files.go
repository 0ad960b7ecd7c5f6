package format

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/durable"
)

// Files are what the folder of a log holds: the numbers of its files, in their order.
type Files struct {
	Logs, Notes, Trees []int
	Removed            bool     // there is the file of what was removed
	left               []string // what a crash has left of files that were being replaced
}

// ListFiles lists the folder of a log, once.
func ListFiles(dir string) (*Files, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	var all Files
	for _, name := range names {
		all.add(name)
	}
	for _, numbers := range [][]int{all.Logs, all.Notes, all.Trees} {
		slices.Sort(numbers)
	}
	return &all, nil
}

func (f *Files) add(name string) {
	for extension, numbers := range map[string]*[]int{".log": &f.Logs, ".ckpt": &f.Notes, ".tree": &f.Trees} {
		if number := numberIn(name, extension); number > 0 {
			*numbers = append(*numbers, number)
			return
		}
	}
	switch {
	case name == RemovedName:
		f.Removed = true
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

// FirstNumber returns the first of numbers, or 0.
func FirstNumber(numbers []int) int {
	if len(numbers) == 0 {
		return 0
	}
	return numbers[0]
}

// LastNumber returns the last of numbers, or 0.
func LastNumber(numbers []int) int {
	if len(numbers) == 0 {
		return 0
	}
	return numbers[len(numbers)-1]
}

func (f *Files) None() bool { return len(f.Logs)+len(f.Notes) == 0 && !f.Removed }

// Whole reports whether both files of what is left of a segment are there.
func (f *Files) Whole(number int) bool {
	_, notes := slices.BinarySearch(f.Notes, number)
	_, tree := slices.BinarySearch(f.Trees, number)
	return notes && tree
}

// Consecutive checks that no segment is missing, but for the first ones that retention
// has removed.
func (f *Files) Consecutive(dir string, past *Pruned) error {
	if len(f.Logs) == 0 {
		return nil
	}
	for number := 1; number < f.Logs[0]; number++ {
		if _, is := slices.BinarySearch(f.Trees, number); is {
			continue
		}
		// A segment missing from the list may have been pruned in the meantime.
		if is, err := past.WasRemoved(number); err != nil || !is {
			return errors.Join(err, Missing(dir, number))
		}
	}
	for i, number := range f.Logs {
		if number != f.Logs[0]+i {
			return Missing(dir, f.Logs[0]+i)
		}
	}
	return nil
}

func Missing(dir string, number int) error {
	return &DamageError{SegmentPath(dir, number), 0, "the segment is missing, and a later one is there"}
}

// Sweep removes what a crash has left of files that were being replaced.
func (f *Files) Sweep(dir string) {
	for _, name := range f.left {
		_ = os.Remove(filepath.Join(dir, name))
	}
}
