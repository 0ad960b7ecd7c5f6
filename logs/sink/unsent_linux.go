package sink

import (
	"syscall"
	"unsafe"
)

// unsent returns the number of written bytes that the other side has not acknowledged (SIOCOUTQ, tcp(7)).
// For a Unix socket it is the number of unread bytes.
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
