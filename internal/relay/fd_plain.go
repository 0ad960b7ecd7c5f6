//go:build !linux || noepoll

package relay

import (
	"errors"
	"syscall"
)

// The calls below never block: their descriptors are non-blocking.

func readFD(fd int, b []byte) (int, syscall.Errno) {
	return retried(func() (int, error) { return syscall.Read(fd, b) })
}

// writeFD writes as much of b as goes. The runtime ignores the SIGPIPE of a broken connection.
func writeFD(fd int, b []byte) (int, syscall.Errno) {
	return retried(func() (int, error) { return syscall.Write(fd, b) })
}

func retried(call func() (int, error)) (int, syscall.Errno) {
	for {
		n, err := call()
		if err == nil {
			return n, 0
		}
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			return n, syscall.EIO
		}
		if errno != syscall.EINTR {
			return n, errno
		}
	}
}

func writeMore(fd int, b []byte) { writeFD(fd, b) }

func shutdownWrite(fd int) { syscall.Shutdown(fd, syscall.SHUT_WR) }

func closeFD(fd int) { syscall.Close(fd) }

// Unread reports whether bytes wait in fd that nobody has read.
func Unread(fd int) bool {
	var b [1]byte
	n, _, err := syscall.Recvfrom(fd, b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == nil && n > 0
}

// Waiting returns how many bytes wait in fd that nobody has read, counted up to 64 KiB.
func Waiting(fd int) int {
	n, _, err := syscall.Recvfrom(fd, make([]byte, bufferSize), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	if err != nil {
		return 0
	}
	return n
}

// newPipe returns nil: there is no splice(2), and tunnels use the buffer.
func newPipe() *pipe { return nil }

func splice(_, _, _ int) (int, syscall.Errno) { return 0, syscall.ENOSYS }

// Socket returns a non-blocking socket for a stream.
func Socket(family int) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err != nil {
		return -1, err
	}
	syscall.CloseOnExec(fd)
	return fd, syscall.SetNonblock(fd, true)
}

// Pair returns two non-blocking stream sockets that are connected to each other.
func Pair() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return fds, err
	}
	for _, fd := range fds {
		syscall.CloseOnExec(fd)
	}
	return fds, errors.Join(syscall.SetNonblock(fds[0], true), syscall.SetNonblock(fds[1], true))
}
