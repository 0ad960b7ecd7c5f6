package sink

import (
	"syscall"
	"unsafe"
)

// unsent returns how many bytes that were written to a socket its other side has not
// yet acknowledged (SIOCOUTQ, tcp(7)); of a Unix socket, not yet read.
func unsent(socket syscall.Conn) (n int, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var left int32
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&left)))
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return int(left), err
}
