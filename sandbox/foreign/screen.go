//go:build linux

package foreign

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/sandbox"
)

// A Screen is a Unix listener whose connections bring no descriptors to the code that serves them. The kernel
// closes descriptors that nobody takes on the thread that reads or closes the connection. Such a close lasts as
// long as the sender likes (SO_LINGER, socket(7)).
//
// If the client of a connection could have sent descriptors (see [RefuseDescriptors]), Accept returns one end of a
// socket pair, and goroutines carry the bytes. They look before they read, and end the connection at the first
// descriptor. A limited number of goroutines closes what was sent ([Closings]); while all of them block, Accept
// waits.
type Screen struct {
	listener *net.UnixListener
	pairs    fair.Pool[uint32] // connections that are carried, by user of the client
	closing  Closings

	mu     sync.Mutex // guards what follows
	closed bool
	open   map[*crossing]struct{}

	carrying sync.WaitGroup
}

// NewScreen returns a screen for l, which it owns from now on. It carries at most so many connections at a time.
func NewScreen(l *net.UnixListener, most int) *Screen {
	return &Screen{listener: l, pairs: fair.Pool[uint32]{Most: most}, open: map[*crossing]struct{}{}}
}

// A Conn is a connection that brings no descriptors.
type Conn struct {
	*net.UnixConn                  // to serve
	Client        sandbox.UnixPeer // the process that connected
	Unknown       error            // why not all of Client is known
}

func (s *Screen) Addr() net.Addr { return s.listener.Addr() }

// Accept implements [net.Listener]. The connection is a *[Conn].
func (s *Screen) Accept() (net.Conn, error) {
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			if s.isClosed() {
				err = net.ErrClosed
			}
			return nil, err
		}
		peer, unknown := sandbox.UnixPeerOf(c)
		if !s.screens(c) {
			return &Conn{c, peer, unknown}, nil
		}
		served, err := s.carry(c, peer.UID)
		if err == nil {
			return &Conn{served, peer, unknown}, nil
		}
		s.closing.Begin(func() { CloseConn(c) })
		if !errors.Is(err, errTooMany) {
			return nil, err
		}
	}
}

// screens reports whether c may bring descriptors. If it may, screens turns off the socket options that add a
// control message to all bytes (unix(7)).
func (s *Screen) screens(c *net.UnixConn) (takes bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	const passPIDFD = 76 // SO_PASSPIDFD
	takes = true
	_ = raw.Control(func(fd uintptr) {
		if takes = takesDescriptors(int(fd)); takes {
			for _, o := range []int{unix.SO_PASSCRED, unix.SO_PASSSEC, passPIDFD} {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o, 0) // which older kernels do not have
			}
		}
	})
	return takes
}

var errTooMany = errors.New("this user has too many connections")

// carry has goroutines carry the bytes of a client to the connection that it returns.
func (s *Screen) carry(client *net.UnixConn, user uint32) (served *net.UnixConn, err error) {
	if !s.pairs.Acquire(user) {
		return nil, errTooMany
	}
	inner, served, err := socketPair()
	if err == nil {
		c := &crossing{client, inner}
		if s.begin(c, user) {
			return served, nil
		}
		err = errors.Join(net.ErrClosed, inner.Close(), served.Close())
	}
	s.pairs.Release(user)
	return nil, err
}

func (s *Screen) begin(c *crossing, user uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.open[c] = struct{}{}
	s.carrying.Go(func() {
		c.run()
		c.inner.Close()
		s.closing.Begin(func() { CloseConn(c.client) })
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
		s.pairs.Release(user)
	})
	return true
}

func (s *Screen) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close ends Accept. Connections go on until Cut.
func (s *Screen) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		Shut(s.listener)
		s.closing.Hurry()
		s.closing.Begin(CloseListener(s.listener))
	}
	return nil
}

// Cut closes the screen, ends all connections, and waits until what clients sent is closed, but no longer than
// patience.
func (s *Screen) Cut(patience time.Duration) {
	s.Close()
	s.mu.Lock()
	for c := range s.open {
		shutdown(c.client)
		shutdown(c.inner)
	}
	s.mu.Unlock()
	s.carrying.Wait()
	s.closing.Wait(patience)
}

// A crossing is a client's connection and the end of the socket pair that stands for it.
type crossing struct{ client, inner *net.UnixConn }

// run carries bytes both ways until both connections are over.
func (c *crossing) run() {
	var up sync.WaitGroup
	up.Go(func() { c.pass(c.client, c.inner) })
	c.pass(c.inner, c.client)
	up.Wait()
}

// farewellTime is how long a client may leave bytes unread after egressd has closed the connection.
const farewellTime = 30 * time.Second

// pass carries what comes from one connection to the other. The end of the stream and the end of the connection
// are passed on, too.
func (c *crossing) pass(from, to *net.UnixConn) {
	for {
		b, n, err := receive(from)
		if n > 0 {
			err = c.send(from, to, b[:n])
		}
		buffers.Put(b)
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			_ = to.CloseWrite()
		case errors.Is(err, errDescriptors):
			shutdown(from)
		default:
			_ = from.CloseRead()
		}
		break
	}
	awaitEnd(from)
	shutdown(to)
}

// send writes all of b. A client that reads nothing cannot keep a connection that egressd has closed.
func (c *crossing) send(from, to *net.UnixConn, b []byte) error {
	for {
		if to == c.client {
			_ = to.SetWriteDeadline(time.Now().Add(farewellTime))
		}
		n, err := to.Write(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 && isOver(from) {
			return err
		}
		b = b[n:]
	}
}

var errDescriptors = errors.New("the client has sent descriptors")

var buffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// receive reads bytes, into a buffer that the caller gives back. It reads only bytes that it has looked at
// before: MSG_PEEK without room for descriptors says that there are some (MSG_CTRUNC), and leaves them where they are.
func receive(c *net.UnixConn) (b *[16 << 10]byte, n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return buffers.Get().(*[16 << 10]byte), 0, err
	}
	done := raw.Read(func(fd uintptr) bool {
		if b == nil {
			b = buffers.Get().(*[16 << 10]byte)
		}
		n, err = receiveNow(int(fd), b[:])
		if err == unix.EAGAIN {
			buffers.Put(b)
			b = nil
		}
		return b != nil
	})
	if b == nil {
		b = buffers.Get().(*[16 << 10]byte)
	}
	return b, n, errors.Join(done, err)
}

func receiveNow(fd int, b []byte) (n int, err error) {
	for {
		var flags int
		n, _, flags, _, err = unix.Recvmsg(fd, b, nil, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case flags&unix.MSG_CTRUNC != 0:
			return 0, errDescriptors
		case n == 0:
			return 0, io.EOF
		}
		return unix.Read(fd, b[:n])
	}
}

// awaitEnd waits until both directions of a connection are over.
func awaitEnd(c *net.UnixConn) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool { return isOverFD(fd) })
	}
}

func isOver(c *net.UnixConn) (over bool) {
	raw, err := c.SyscallConn()
	return err != nil || raw.Control(func(fd uintptr) { over = isOverFD(fd) }) != nil || over
}

func isOverFD(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(p, 0)
	return p[0].Revents != 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// shutdown ends both directions of a connection.
func shutdown(c *net.UnixConn) {
	_ = c.CloseRead()
	_ = c.CloseWrite()
}

// socketPair returns connections to each other.
func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	a, errA := unixConn(fds[0])
	b, errB := unixConn(fds[1])
	if err := errors.Join(errA, errB); err != nil {
		for _, c := range []*net.UnixConn{a, b} {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return a, b, nil
}

// unixConn makes a connection of fd, which it closes either way.
func unixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "pair")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
