// Package format reads what a log consists of: lines, checkpoints, the tree over the lines, and the names of the files
// (docs/reference/audit-format.md). The writer, package audit, and the verifier, audit/verify, share it. It changes no file.
package format

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// The modes of what a log consists of.
const (
	DirectoryRW = 0o700
	FileRW      = 0o600
)

func SegmentPath(dir string, number int) string {
	return filepath.Join(dir, fmt.Sprintf("%08d.log", number))
}

func NotePath(dir string, number int) string {
	return strings.TrimSuffix(SegmentPath(dir, number), ".log") + ".ckpt"
}

func TreePath(dir string, number int) string {
	return strings.TrimSuffix(SegmentPath(dir, number), ".log") + ".tree"
}

// Segments returns the paths of the segments in dir, the oldest first. It
// needs no lock.
func Segments(dir string) ([]string, error) {
	all, err := ListFiles(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, number := range all.Logs {
		paths = append(paths, SegmentPath(dir, number))
	}
	return paths, nil
}

// IsFile reports whether a regular file is at path. A dangling symbolic link counts as no file. A pipe or another special
// file is an error, since reading it could block for ever.
func IsFile(path string) (bool, error) {
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

// OpenFile opens a file of a log for reading. The log may come from a stranger, so pipes, devices and other special files
// are errors.
func OpenFile(path string) (*os.File, error) {
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
