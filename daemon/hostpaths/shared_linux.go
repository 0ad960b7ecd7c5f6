package hostpaths

import (
	"os"

	"golang.org/x/sys/unix"
)

// firstPIDNamespace is the name of the machine's own PID namespace: the kernel gives it a fixed number (PROC_PID_INIT_INO).
const firstPIDNamespace = "pid:[4026531836]"

// IsShared reports whether a file may be shared with other containers: egressd is in a container, and the file is mounted by
// itself. Engines mount /etc/hosts and /etc/resolv.conf so, and one file into all containers of a pod or of one network.
func IsShared(path string) bool {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns == firstPIDNamespace {
		return false
	}
	return isMounted(path)
}

// isMounted reports whether a file is mounted by itself, or cannot be looked at.
func isMounted(path string) bool {
	var s unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &s); err != nil {
		return true
	}
	return s.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
