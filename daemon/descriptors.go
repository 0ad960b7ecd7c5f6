package daemon

import (
	"errors"
	"os"
	"syscall"
)

// passRights is SO_PASSRIGHTS of Linux 6.16, which packages syscall and unix do not know.
const passRights = 83

// refuseDescriptors has the kernel refuse descriptors that clients of a Unix socket send (SCM_RIGHTS): their
// sendmsg(2) fails with EPERM. The kernel closes descriptors that nobody takes on the thread that reads, and
// such a close lasts as long as the sender likes (SO_LINGER, socket(7)). Connections inherit the option when the
// client connects. Older kernels do not have it: there the function does nothing.
func refuseDescriptors(fd uintptr) error {
	err := syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, passRights, 0)
	if errors.Is(err, syscall.ENOPROTOOPT) {
		return nil
	}
	return os.NewSyscallError("setsockopt", err)
}

// isUnix reports whether fd is a Unix socket.
func isUnix(fd uintptr) bool {
	family, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_DOMAIN)
	return err == nil && family == syscall.AF_UNIX
}
