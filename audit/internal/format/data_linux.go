package format

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// seekData is SEEK_DATA of lseek(2).
const seekData = 3

// nextData returns the first place from at on that is in no hole of f, and [io.EOF]
// where there is none. It moves the place of f, which nobody uses who reads with
// ReadAt. Where the file system knows of no holes it is at.
func nextData(f *os.File, at int64) (int64, error) {
	next, err := f.Seek(at, seekData)
	switch {
	case errors.Is(err, syscall.ENXIO):
		return 0, io.EOF
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EOPNOTSUPP):
		return at, nil
	}
	return next, err
}
