//go:build linux

package main

import (
	"fmt"
	"syscall"
)

// originMode is what an epoll loop does with its connections.
type originMode uint8

const (
	flightMode originMode = iota // 1 byte for a first flight, then echo
	httpMode                     // a page for every request head
)

// A loop serves the connections that it accepts from one listener, in one
// goroutine. It is lighter than a goroutine a connection, which matters where
// origin and proxy share the processors.
type loop struct {
	epoll    int
	listener int
	mode     originMode
	conns    []originConn // by descriptor
	buf      []byte
	replies  []byte
}

// An originConn is what a loop knows of a connection.
type originConn struct {
	flight   flight
	answered bool
}

// epollExclusive wakes one loop, not all, for a new connection.
const epollExclusive = 1 << 28

// listenRaw listens on a port of 127.0.0.1, non-blocking; on a free one for 0.
func listenRaw(port int) (fd, bound int, err error) {
	fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("socket: %w", err)
	}
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}); err != nil {
		return -1, 0, fmt.Errorf("bind: %w", err)
	}
	if err = syscall.Listen(fd, 4096); err != nil {
		return -1, 0, fmt.Errorf("listen: %w", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return -1, 0, fmt.Errorf("getsockname: %w", err)
	}
	return fd, name.(*syscall.SockaddrInet4).Port, nil
}

func newLoop(listener int, mode originMode) (*loop, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	l := &loop{epoll: epoll, listener: listener, mode: mode, buf: make([]byte, 1<<16)}
	return l, l.watch(listener, syscall.EPOLLIN|epollExclusive)
}

func (l *loop) watch(fd int, events uint32) error {
	event := syscall.EpollEvent{Events: events, Fd: int32(fd)}
	if err := syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// run serves until epoll fails, which it does not while the process lives.
func (l *loop) run() error {
	events := make([]syscall.EpollEvent, 128)
	for {
		n, err := syscall.EpollWait(l.epoll, events, -1)
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("epoll_wait: %w", err)
		}
		for i := range max(n, 0) {
			if fd := int(events[i].Fd); fd == l.listener {
				l.accept()
			} else if !l.serve(fd) {
				resetFD(fd)
			}
		}
	}
}

func (l *loop) accept() {
	fd, _, err := syscall.Accept4(l.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	if err != nil {
		return // another loop was faster, or no descriptor is left: the client counts that
	}
	for fd >= len(l.conns) {
		l.conns = append(l.conns, originConn{})
	}
	l.conns[fd] = originConn{}
	if setNoDelay(fd) != nil || l.watch(fd, syscall.EPOLLIN) != nil {
		resetFD(fd)
	}
}

// serve reads once from fd and answers; false means that the connection is
// over.
func (l *loop) serve(fd int) bool {
	n, err := syscall.Read(fd, l.buf)
	if err == syscall.EAGAIN || err == syscall.EINTR {
		return true
	}
	if n <= 0 {
		return false
	}
	reply := l.reply(&l.conns[fd], l.buf[:n])
	if len(reply) == 0 {
		return true
	}
	written, err := syscall.Write(fd, reply)
	return err == nil && written == len(reply)
}

// reply returns what c answers to b; it is valid until the next call.
func (l *loop) reply(c *originConn, b []byte) []byte {
	if c.answered {
		return b // an echo
	}
	l.replies = l.replies[:0]
	for len(b) > 0 {
		n, complete := c.flight.take(b)
		b = b[n:]
		switch {
		case !complete:
		case l.mode == httpMode:
			l.replies = append(l.replies, page...)
			c.flight = flight{}
		default:
			c.answered = true
			l.replies = append(append(l.replies, c.flight.sum), b...)
			return l.replies
		}
	}
	return l.replies
}

// resetFD closes a connection with a reset, so that neither side keeps its
// ports in TIME_WAIT.
func resetFD(fd int) {
	// Both can only fail for a connection that is gone already.
	_ = syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	_ = syscall.Close(fd)
}

func setNoDelay(fd int) error {
	return syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
}
