package format

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// Writing reports whether somebody has the log in dir open for writing. It is not
// an error that there is no log.
func Writing(dir string) (bool, error) {
	f, err := OpenFile(filepath.Join(dir, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the lock of the audit log: %w", err)
	}
	defer f.Close() // which lets go of the lock
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look at the lock of the audit log: %w", err)
	}
	return false, nil
}
