package carry

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

const linuxReadEnded = 0x2000 // POLLRDHUP; no other system has that bit

// State reports whether the other side of fd sends no more, whatever it sent before, and whether it is gone: both ways have
// ended, or the socket has failed. macOS tells the end of one way like that of both. There, only a failure tells that it is gone.
func State(fd int) (ended, gone bool) {
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
