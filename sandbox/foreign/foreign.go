//go:build linux

// Package foreign handles descriptors that another program made and may still hold. That program is the
// adversary: socket options that it set may block system calls of this process, close(2) included.
package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/egressd/egressd/internal/jailinit"
	"golang.org/x/sys/unix"
)

// inherited are socket options that an accepted connection inherits from its listener, with their default
// values.
var inherited = [...]struct{ option, plain int }{
	{unix.SO_PEEK_OFF, -1},    // else what is looked at is not what is read after (for TCP since Linux 6.9)
	{unix.SO_TIMESTAMPING, 0}, // else what was sent comes back, as errors
	{unix.SO_RCVLOWAT, 1},     // else nobody is told of bytes until there are many
	{unix.SO_OOBINLINE, 0},
}

// Plain gives a connection default options. A connection that was accepted at another program's listener has
// the options that the program set. With SO_LINGER, close(2) would block for as long as that program likes
// (socket(7)).
func Plain(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = makePlain(int(fd)) })
	return errors.Join(err, failed)
}

func makePlain(fd int) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}); err != nil {
		return fmt.Errorf("make a connection plain: %w", err)
	}
	for _, o := range inherited {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.option, o.plain)
		if err != nil && !errors.Is(err, unix.ENOPROTOOPT) && !errors.Is(err, unix.EOPNOTSUPP) { // then there is none to have
			return fmt.Errorf("make a connection plain: option %d: %w", o.option, err)
		}
	}
	return nil
}

const (
	controlBytes = 4096
	nestedMost   = 16 // the kernel lets sockets be sent in sockets four times
)

// Discard closes a descriptor. First it turns SO_LINGER off, and empties the queues of a Unix socket, whose
// descriptors the kernel would close as they are. Closing a file may still block for as long as its file system
// likes.
func Discard(fd int) { discardNested(fd, 0) }

func discardNested(fd, depth int) {
	empty(fd, depth)
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // what is no socket has none
	unix.Close(fd)
}

// Empty discards everything in the queue of a Unix socket, and shuts the socket down. Other descriptors stay as
// they are.
func Empty(fd int) { empty(fd, 0) }

func empty(fd, depth int) {
	if family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || family != unix.AF_UNIX || depth > nestedMost {
		return
	}
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	if Listening(fd) {
		for { // which never waits, as the socket is shut
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
			if err == nil {
				discardNested(c, depth+1)
			}
		}
	}
	sort, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) // so that of messages, too, which may be empty, nothing but the end is without one of control
	bytes, control := make([]byte, 4096), make([]byte, controlBytes)
	for {
		got, n, _, _, err := unix.Recvmsg(fd, bytes, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 || sort == unix.SOCK_STREAM && got == 0 {
			return
		}
		for _, inner := range append(jailinit.Descriptors(control[:n]), processesIn(control[:n])...) {
			discardNested(inner, depth+1)
		}
	}
}

// processesIn returns the pidfds of senders, which arrive with messages if the socket's owner has set
// SO_PASSPIDFD (Linux 6.5).
func processesIn(control []byte) (fds []int) {
	const pidfd = 4 // SCM_PIDFD
	messages, _ := syscall.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == pidfd && len(m.Data) >= 4 {
			if fd := int32(binary.NativeEndian.Uint32(m.Data)); fd >= 0 {
				fds = append(fds, int(fd))
			}
		}
	}
	return fds
}

// Listening reports whether a descriptor is a socket that takes connections.
func Listening(fd int) bool {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && n != 0
}
