package jailinit

import (
	"fmt"
	"os"
	slash "path"
	"strconv"

	"golang.org/x/sys/unix"
)

// closeDescriptors closes what was inherited beyond the standard streams, but for pipes,
// terminals and files that are not kept: those of make(1), and of a shell's
// redirections, are meant for the program. The standard streams may be Unix sockets with a connection, too.
func closeDescriptors(control int, kept keptFiles) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd == control {
			continue
		}
		switch what := leadsTo(fd, kept); {
		case what == "":
		case fd <= 2:
			return fmt.Errorf("descriptor %d is %s", fd, what)
		default:
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// CloseDescriptors closes, on execve(2), what was inherited beyond the standard streams and
// leads to the outside. It is an error where one of these does.
func CloseDescriptors() error { return closeDescriptors(-1, keptFiles{}) }

// RefusedStream returns the first standard stream with which a jail does not start, and what it is; nothing if there is none. A
// stream may also be a file that is hidden or fixed, which is known later.
func RefusedStream() (fd int, what string) {
	for fd = range 3 {
		if what = leadsTo(fd, keptFiles{}); what != "" {
			return fd, what
		}
	}
	return 0, ""
}

// A fileID is the same for a file by whatever path and descriptor.
type fileID struct{ device, inode uint64 }

// keptFiles are those that are hidden or fixed, and what lies below them.
type keptFiles struct {
	paths map[string]bool
	ids   map[fileID]bool
}

func filesOf(paths []string) keptFiles {
	all := keptFiles{map[string]bool{}, map[fileID]bool{}}
	seen := plain{}
	for _, path := range paths {
		if way, err := seen.trail(path); err == nil {
			all.paths[way[len(way)-1]] = true
		}
		var file unix.Stat_t
		if unix.Stat(path, &file) == nil && file.Mode&unix.S_IFMT == unix.S_IFREG {
			all.ids[fileID{file.Dev, file.Ino}] = true
		}
	}
	return all
}

// has reports whether a descriptor is one of them, or of a file in one.
func (k keptFiles) has(fd int, file *unix.Stat_t) bool {
	if k.ids[fileID{file.Dev, file.Ino}] {
		return true
	}
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return true
	}
	for ; path != "/" && path != "."; path = slash.Dir(path) {
		if k.paths[path] {
			return true
		}
	}
	return false
}

// leadsTo says what of the outside a descriptor leads to, or nothing. It is as the one
// who started egressd opened it, past the jail's mounts.
func leadsTo(fd int, kept keptFiles) string {
	var file unix.Stat_t
	if unix.Fstat(fd, &file) != nil {
		return ""
	}
	switch file.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return ""
	case unix.S_IFREG:
		if isOfKernel(fd) {
			return ofKernel
		}
		if kept.has(fd, &file) {
			return "a file that egressd keeps from its programs"
		}
		return ""
	case unix.S_IFCHR:
		if isPlainDevice(file.Rdev) {
			return ""
		}
		return "a device"
	case unix.S_IFDIR:
		return "a folder as it is outside"
	case unix.S_IFSOCK:
		family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil || family != unix.AF_UNIX {
			return "a connection to the network outside"
		}
		if fd > 2 {
			return "a socket of a process outside"
		}
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind == unix.SOCK_DGRAM {
			return "a socket that reaches others of the network outside" // abstract ones
		}
		if _, err := unix.Getpeername(fd); err != nil {
			return "a socket without a connection, which can be connected to others of the network outside"
		}
		return ""
	}
	return ofKernel
}

const ofKernel = "something of the kernel's" // a namespace, a process, a setting, a ring

// isOfKernel reports whether a file is in no storage, but made by the kernel.
func isOfKernel(fd int) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return true
	}
	switch int64(fs.Type) {
	case unix.NSFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.PID_FS_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.BPF_FS_MAGIC, unix.SECURITYFS_MAGIC, unix.ANON_INODE_FS_MAGIC:
		return true
	}
	return false
}

// isPlainDevice reports whether a device is memory, such as /dev/null, or a terminal.
func isPlainDevice(device uint64) bool {
	switch major := unix.Major(device); major {
	case 1:
		minor := unix.Minor(device)
		return minor == 3 || minor == 5 || minor >= 7 && minor <= 9 // null, zero, full, random, urandom
	case 4, 5, 136, 137, 138, 139, 140, 141, 142, 143, 204, 229:
		return true // terminals: virtual, serial, and of Unix98
	}
	return false
}
