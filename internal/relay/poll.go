package relay

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// poll asks poll(2) for the events of fd, without waiting. It never returns ended: on macOS, POLLHUP stands for
// the end of one half.
func poll(fd int) (e Events) {
	const linuxReadEnded = 0x2000 // POLLRDHUP
	asked := int16(unix.POLLIN | unix.POLLOUT)
	if runtime.GOOS == "linux" {
		asked |= linuxReadEnded
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: asked}}
	if _, err := unix.Poll(fds, 0); err != nil {
		return CanRead | canWrite // who tries finds out
	}
	has := func(bits int16) bool { return fds[0].Revents&bits != 0 }
	if has(unix.POLLIN) {
		e |= CanRead
	}
	if has(unix.POLLOUT) {
		e |= canWrite
	}
	if has(unix.POLLERR | unix.POLLNVAL) {
		e |= failed
	}
	if has(unix.POLLHUP | linuxReadEnded) {
		e |= readEnded
	}
	return e
}

// Left reports whether the other side of fd sends no more, whatever it sent before.
func Left(fd int) bool { return poll(fd).Hangup() }

// Ended reports whether both ways of the stream socket fd have ended, or it has failed.
func Ended(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd)}}
	if _, err := unix.Poll(fds, 0); err != nil {
		return true
	}
	return fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}
