package jailinit

import (
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// leadGroup gives an interactive dash a process group that it leads, in the foreground of its terminal. dash makes such a
// group anyway, and at its end goes back to the one of its start. That is egressd's group, which has no number in the PID
// namespace: dash would end with an error and the status 2.
func leadGroup(path string, argv []string) {
	if real, err := filepath.EvalSymlinks(path); err != nil || filepath.Base(real) != "dash" || !interactive(argv) || !foregroundOutside() {
		return
	}
	runtime.LockOSThread() // until the program is executed
	var old unix.Sigset_t
	held := unix.Sigset_t{Val: [len(old.Val)]uint64{1 << (unix.SIGTTOU - 1)}} // which the kernel sends who is in the background
	if unix.PthreadSigmask(unix.SIG_BLOCK, &held, &old) != nil {
		return
	}
	if unix.Setpgid(0, 0) == nil {
		group := int32(unix.Getpid())
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSPGRP, uintptr(unsafe.Pointer(&group)))
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
}

// interactive reports whether a shell with these arguments reads from its terminal: it has neither a script nor a command.
func interactive(argv []string) bool {
	for _, arg := range argv[1:] {
		if !strings.HasPrefix(arg, "-") || strings.Contains(arg, "c") {
			return false
		}
	}
	return true
}

// foregroundOutside reports whether this process may read from its standard input as a member of a group outside of the PID
// namespace. The kernel calls such a group 0.
func foregroundOutside() bool {
	var group int32
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	return errno == 0 && group == 0 && unix.Getpgrp() == 0
}
