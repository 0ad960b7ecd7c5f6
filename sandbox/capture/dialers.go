package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Dialers connect to servers on a jail's loopback from outside. This process may not enter the jail's network,
// so jail init makes the sockets beforehand, and Dialers reuses them. No process of egressd has to stay in the
// jail for it. The number of sockets bounds the number of open connections.
//
// Dialers are safe for concurrent use.
type Dialers struct {
	mu     sync.Mutex    // guards what follows
	idle   map[int][]int // descriptors, by family
	closed bool
}

func (d *Dialers) add(family, fd int) {
	if d.idle == nil {
		d.idle = map[int][]int{}
	}
	d.idle[family] = append(d.idle[family], fd)
}

// Close closes the idle sockets, and each other socket once its connection is closed.
func (d *Dialers) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, fds := range d.idle {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	d.idle = nil
}

// An InsideConn is a connection to a server in a jail. Close resets the connection if one of its two directions
// is still open.
type InsideConn struct {
	*net.TCPConn
	release func()
}

// Close returns the socket to its Dialers.
func (c *InsideConn) Close() error {
	err := c.TCPConn.Close()
	c.release()
	return err
}

// Dial connects to a port on 127.0.0.1 and, if that fails, on ::1. Each try takes at most patience.
func (d *Dialers) Dial(port uint16, patience time.Duration) (*InsideConn, error) {
	c, err := d.dial(unix.AF_INET, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}, patience)
	if err == nil {
		return c, nil
	}
	c, err6 := d.dial(unix.AF_INET6, &unix.SockaddrInet6{Port: int(port), Addr: netip.IPv6Loopback().As16()}, patience)
	if err6 == nil {
		return c, nil
	}
	return nil, fmt.Errorf("connect to port %d of the sandbox: %w", port, err)
}

func (d *Dialers) dial(family int, to unix.Sockaddr, patience time.Duration) (*InsideConn, error) {
	fd, err := d.take(family)
	if err != nil {
		return nil, err
	}
	if err := connect(fd, to, patience); err != nil {
		d.giveBack(family, fd)
		return nil, err
	}
	conn, err := again(fd)
	if err != nil {
		d.giveBack(family, fd)
		return nil, err
	}
	return &InsideConn{conn, sync.OnceFunc(func() { d.giveBack(family, fd) })}, nil
}

// again returns fd's connection with a descriptor of its own.
func again(fd int) (*net.TCPConn, error) {
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(other), "dialer")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return nil, errors.New("not a socket for TCP")
	}
	return tcp, nil
}

// errDialersBusy is for a dial while all sockets are in use.
var errDialersBusy = errors.New("too many connections to the sandbox are open")

// take returns an unconnected socket.
func (d *Dialers) take(family int) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fds := d.idle[family]
	for i, fd := range fds {
		if delivering(fd) || disconnect(fd) != nil {
			continue
		}
		d.idle[family] = slices.Delete(fds, i, i+1)
		return fd, nil
	}
	return -1, errDialersBusy
}

// giveBack queues fd behind all other idle sockets, so that the kernel has time to deliver the last bytes.
func (d *Dialers) giveBack(family, fd int) {
	if !delivering(fd) {
		_ = disconnect(fd)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		unix.Close(fd)
		return
	}
	d.add(family, fd)
}

// delivering reports whether both sides have closed a connection whose last bytes are not acknowledged yet (RFC
// 9293 §3.3.2).
func delivering(fd int) bool {
	const lastAck, closing = 9, 11
	info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
	return err == nil && (info.State == lastAck || info.State == closing)
}

// disconnect makes fd an unconnected socket. An open connection is reset.
func disconnect(fd int) error {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	if errno != 0 {
		return errno
	}
	return nil
}

func connect(fd int, to unix.Sockaddr, patience time.Duration) error {
	err := unix.Connect(fd, to)
	if !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	until := time.Now().Add(patience)
	for {
		left := time.Until(until)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(max(left.Milliseconds(), 0)))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return os.ErrDeadlineExceeded
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return err
	}
}
