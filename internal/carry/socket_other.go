//go:build !linux

package carry

import (
	"errors"
	"syscall"
)

func splice(_, _, _ int) (int, error) { return 0, syscall.ENOSYS }

// newPipe returns nil: there is no splice(2), and streams use buffers.
func newPipe() *pipe { return nil }

func (*pipe) close() {}

func unread(fd int) bool {
	var b [1]byte
	n, _, err := syscall.Recvfrom(fd, b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == nil && n > 0
}

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
