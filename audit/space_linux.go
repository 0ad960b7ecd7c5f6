package audit

import (
	"os"
	"syscall"
)

// Space returns how many bytes of the file system of dir are free for its user, and how many it
// has.
func Space(dir string) (free, size int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	unit := int64(s.Frsize)
	return int64(s.Bavail) * unit, int64(s.Blocks) * unit, nil
}
