package carry

import (
	"errors"
	"net"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

const linuxReadEnded = 0x2000 // POLLRDHUP; no other system has that bit

// State reports whether the peer of a connection sends no more, whatever it sent before, and whether it is gone: both ways
// have ended, or the socket has failed. A connection that was closed here has ended. macOS tells the end of one way like that
// of both. There, only a failure tells that the peer is gone.
func State(c net.Conn) (ended, gone bool) {
	is, err := control(c, func(fd int) { ended, gone = state(fd) })
	return ended || is && err != nil, gone
}

// Unread reports whether bytes of a connection wait that nobody has read.
func Unread(c net.Conn) (waits bool) {
	control(c, func(fd int) { waits = unread(fd) })
	return waits
}

// control calls do with the descriptor of a connection, unless that is no socket, or is closed.
func control(c net.Conn, do func(fd int)) (is bool, err error) {
	socket, is := c.(syscall.Conn)
	if !is {
		return false, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true, err
	}
	return true, raw.Control(func(fd uintptr) { do(int(fd)) })
}

func state(fd int) (ended, gone bool) {
	broken := int16(unix.POLLERR | unix.POLLNVAL)
	if runtime.GOOS == "linux" {
		broken |= unix.POLLHUP
	}
	got := poll(fd, linuxReadEnded)
	return got&(linuxReadEnded|unix.POLLHUP|broken) != 0, got&broken != 0
}

// Ended reports whether both ways of the stream socket fd have ended, or it has failed.
func Ended(fd int) bool { return poll(fd, 0)&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 }

// poll asks poll(2) for events, without waiting.
func poll(fd int, asked int16) int16 {
	fds := []unix.PollFd{{Fd: int32(fd), Events: asked}}
	for {
		_, err := unix.Poll(fds, 0)
		switch {
		case err == nil:
			return fds[0].Revents
		case !errors.Is(err, unix.EINTR): // which the runtime's signals cause
			return unix.POLLERR
		}
	}
}
