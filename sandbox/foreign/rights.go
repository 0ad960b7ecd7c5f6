//go:build linux

package foreign

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// passRights is SO_PASSRIGHTS of Linux 6.16, which package unix does not know.
const passRights = 83

// RefuseDescriptors has the kernel refuse descriptors that clients of a Unix listener send (SCM_RIGHTS): their
// sendmsg(2) fails with EPERM. Connections inherit that from the listener when the client connects. all is false if
// connections may bring descriptors all the same, and the listener needs a [Screen]: before Linux 6.16, and if
// clients connected before this call.
func RefuseDescriptors(fd uintptr) (all bool, err error) {
	before, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, passRights)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return false, nil
	}
	if err == nil {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, passRights, 0)
	}
	listened, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return before == 0 || listened == 0, os.NewSyscallError("setsockopt", err)
}

// KernelRefuses reports whether RefuseDescriptors works on this kernel.
func KernelRefuses() bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	all, err := RefuseDescriptors(uintptr(fd))
	return all && err == nil
}

// takesDescriptors reports whether the client of fd could have sent descriptors.
func takesDescriptors(fd int) bool {
	on, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, passRights)
	return err != nil || on != 0
}
