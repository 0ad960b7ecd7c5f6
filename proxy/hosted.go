package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A client is a client connection that a goroutine serves.
type client struct {
	server *forwarder
	raw    net.Conn // the client's connection
	conn   net.Conn // raw, or the TLS on it
	peer   sandbox.Peer
	first  []byte // read already
	via    policy.Via

	tunnelTo   *policy.Destination // of the tunnel in which the client speaks HTTP, or nil
	capturedTo *policy.Destination // the original address of a captured connection that has no name, or nil

	// assign counts the connection with the sandbox that turned out to have it, or refuses it.
	assign func(sandbox string) *egress.Refusal
}

// Read reads what was read already, then from the client.
func (h *client) Read(b []byte) (int, error) {
	if len(h.first) > 0 {
		n := copy(b, h.first)
		h.first = h.first[n:]
		return n, nil
	}
	h.first = nil
	return h.conn.Read(b)
}

// deadline gives the client d for what comes next.
func (h *client) deadline(d time.Duration) { h.conn.SetDeadline(time.Now().Add(d)) }

// lastWord sends the last answer and leaves the client a moment to take it.
func (h *client) writeLast(answer []byte) {
	const moment = time.Second
	h.deadline(moment)
	if _, err := h.conn.Write(answer); err != nil {
		return
	}
	if half, ok := h.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		io.CopyN(io.Discard, h.conn, 1<<20)
	}
}

// headReaders holds readers whose buffers take a whole message head. They are
// borrowed while a connection speaks HTTP.
type headReaders struct{ pool sync.Pool }

func (p *headReaders) borrow(r io.Reader, size int) *bufio.Reader {
	br, ok := p.pool.Get().(*bufio.Reader)
	if !ok || br.Size() < size {
		return bufio.NewReaderSize(r, size)
	}
	br.Reset(r)
	return br
}

func (p *headReaders) giveBack(br *bufio.Reader) {
	br.Reset(bytes.NewReader(nil))
	p.pool.Put(br)
}

// readNow reads what is there already. Where nothing is, the error is
// [os.ErrDeadlineExceeded].
func readNow(c net.Conn, b []byte) (n int, err error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.New("not a socket of the system")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, failed = syscall.Read(int(fd), b)
			if !errors.Is(failed, syscall.EINTR) {
				return true
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case errors.Is(failed, syscall.EAGAIN):
		return 0, os.ErrDeadlineExceeded
	case failed != nil:
		return 0, failed
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// A farConn is the connection below the TLS with an upstream. While it is
// hasty, reads do not wait for bytes.
type upstreamConn struct {
	net.Conn
	noWait bool // only changed while nobody reads, and
	bound  handshakeBound
	closed bool // the upstream has closed it; for who reads
}

func (c *upstreamConn) Read(b []byte) (int, error) {
	if c.noWait {
		return readNow(c.Conn, b)
	}
	n, err := c.Conn.Read(b)
	c.closed = errors.Is(err, io.EOF)
	if long := c.bound.came(n); long != nil {
		return 0, long
	}
	return n, err
}

// A prefixed is a connection with what was read of it put back in front.
type prefixed struct {
	net.Conn
	first []byte
}

func (c *prefixed) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// abort breaks c off, so that its other end cannot take what came for all.
func abort(c net.Conn) {
	if tls, ok := c.(*tls.Conn); ok {
		c = tls.NetConn()
	}
	switch below := c.(type) {
	case *prefixed:
		c = below.Conn
	case *upstreamConn:
		c = below.Conn
	}
	if socket, ok := c.(interface{ SetLinger(int) error }); ok {
		socket.SetLinger(0)
	}
	c.Close()
}
