package carry

import (
	"syscall"
	"unsafe"
)

const (
	spliceMove     = 1
	spliceNonblock = 2
)

// splice moves up to n bytes without waiting. The error is EAGAIN if there are none.
func splice(from, to, n int) (int, error) {
	for {
		moved, err := syscall.Splice(from, nil, to, nil, n, spliceMove|spliceNonblock)
		if err != syscall.EINTR {
			return int(moved), err
		}
	}
}

func newPipe() *pipe {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return nil
	}
	const setPipeSize = 1031 // F_SETPIPE_SZ
	syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[1]), setPipeSize, pipeSize)
	return &pipe{r: fds[0], w: fds[1]}
}

func (p *pipe) close() {
	syscall.Close(p.r)
	syscall.Close(p.w)
}

func unread(fd int) bool {
	const fionread = 0x541b
	var n int32
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), fionread, uintptr(unsafe.Pointer(&n)))
	return errno == 0 && n > 0
}

// Socket returns a non-blocking socket for a stream.
func Socket(family int) (int, error) {
	return syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
}

// Pair returns two non-blocking stream sockets that are connected to each other.
func Pair() ([2]int, error) {
	return syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
}
