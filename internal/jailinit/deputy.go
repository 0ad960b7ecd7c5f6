package jailinit

import (
	"fmt"
	"os"
	slash "path"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// removable returns the hidden sockets below the working directory that the program could remove if they were not hidden. The
// kernel lets nobody remove what a mount hides, so egressd removes them for the program.
func (p *Program) removable() (paths []string) {
	dir, err := os.Getwd()
	if err != nil {
		return nil
	}
	for path := range p.hidden {
		if _, ok := below(path, dir); ok && !p.folders[path] && !slices.Contains(p.Services, path) && unix.Access(slash.Dir(path), unix.W_OK) == nil {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// RemovalCalls are the native system calls that remove a file or put another one in its place. The value is the number of the
// argument that has its path; the folder that a relative path begins at stands before it, if Folder.
func RemovalCalls() map[int32]Removal {
	calls := map[int32]Removal{unix.SYS_UNLINKAT: {Path: 1, Folder: true}, unix.SYS_RENAMEAT2: {Path: 3, Folder: true, Replaces: true}}
	switch runtime.GOARCH {
	case "amd64":
		calls[87] = Removal{}                                       // unlink
		calls[82] = Removal{Path: 1, Replaces: true}                // rename
		calls[264] = Removal{Path: 3, Folder: true, Replaces: true} // renameat
	case "arm64":
		calls[38] = Removal{Path: 3, Folder: true, Replaces: true} // renameat
	}
	return calls
}

// A Removal says how a system call removes a file.
type Removal struct {
	Path     int  // argument
	Folder   bool // the argument before Path is a descriptor of a folder
	Replaces bool // another file takes the place
}

// groupIsOutside reports whether this process has a terminal, and is in a process group of another PID namespace. The kernel calls
// such a group 0, and takes this number from nobody: a shell could not give the terminal back to its group.
func groupIsOutside() bool {
	var group int32
	terminal, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(terminal)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(terminal), unix.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	return errno == 0 && unix.Getpgrp() == 0
}

// ForegroundCall returns the number of the system call that gives a terminal to a process group, with TIOCSPGRP in its second argument.
func ForegroundCall() int32 { return int32(abisOf(runtime.GOARCH)[0].ioctl) }

// listen has the kernel ask the holder of the returned descriptor before each of RemovalCalls, if removals, and before each of
// ForegroundCall, if foreground.
func listen(removals, foreground bool) (fd int, err error) {
	native := abisOf(runtime.GOARCH)[0]
	asks := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF}
	f := filterText{load(offsetArch), jump(unix.BPF_JEQ, native.arch, 1, 0), passes(), load(offsetNumber)}
	if removals {
		for number := range RemovalCalls() {
			f = append(f, jump(unix.BPF_JEQ, uint32(number), 0, 1), asks)
		}
	}
	if foreground {
		f = f.call(native.ioctl, filterText{load(offsetArgs + 8), jump(unix.BPF_JEQ, unix.TIOCSPGRP, 0, 1), asks, passes()})
	}
	f = append(f, passes())
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	const waitKillable = 0x20 // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, since Linux 5.19
	for _, flags := range []uintptr{unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | waitKillable, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER} {
		n, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
		if errno == 0 {
			return int(n), nil
		}
		err = fmt.Errorf("listen for calls: %w", errno)
	}
	return -1, err
}
