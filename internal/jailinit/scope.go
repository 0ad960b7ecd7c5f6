package jailinit

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/landlock.h.
const (
	landlockVersion     = 1 << 0 // LANDLOCK_CREATE_RULESET_VERSION
	landlockScopeSignal = 1 << 1 // LANDLOCK_SCOPE_SIGNAL
	landlockScopeSince  = 6      // the version of Landlock that has it: Linux 6.12
)

// scopeSignals keeps the program from sending signals to processes outside of
// its jail, egressd first among them. A kernel that cannot do so leaves that
// open: egressd's end is the end of the program's network, too.
//
// It handles no files: Landlock would forbid nested sandboxes to mount anything.
func scopeSignals() error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, landlockVersion)
	if errno != 0 || version < landlockScopeSince {
		return nil
	}
	rules := struct{ files, network, scoped uint64 }{scoped: landlockScopeSignal}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules), 0)
	if errno != 0 {
		return errno
	}
	_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
	if errno != 0 {
		return errors.Join(errno, unix.Close(int(fd)))
	}
	return unix.Close(int(fd))
}
