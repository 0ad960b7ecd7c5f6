package exchange

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A Client is a client connection that a goroutine serves.
type Client struct {
	Forwarder *Forwarder
	Raw       net.Conn // the client's connection
	Conn      net.Conn // raw, or the TLS on it
	Peer      sandbox.Peer
	First     []byte // read already
	Via       policy.Via

	TunnelTo   *policy.Destination // of the tunnel in which the client speaks HTTP, or nil
	CapturedTo *policy.Destination // the original address of a captured connection that has no name, or nil

	// Assign counts the connection with the sandbox that turned out to have it, or refuses it. The quota is of holder.
	Assign func(holder, sandbox string) *egress.Refusal
}

// Read reads what was read already, then from the client.
func (h *Client) Read(b []byte) (int, error) {
	if len(h.First) > 0 {
		n := copy(b, h.First)
		h.First = h.First[n:]
		return n, nil
	}
	h.First = nil
	return h.Conn.Read(b)
}

// Deadline gives the client d for what comes next.
func (h *Client) Deadline(d time.Duration) { h.Conn.SetDeadline(time.Now().Add(d)) }

// LastMoment is what [WriteLast] leaves a client.
const LastMoment = time.Second

// WriteLast sends the last answer to c, which may be none, ends the way down, and reads what the other end still sends until
// that closes or the moment is over: bytes that nobody has read make the end a reset, which takes away what is not read yet
// (RFC 9112 section 9.6). The caller closes c.
func WriteLast(c net.Conn, answer []byte, moment time.Duration) {
	c.SetDeadline(time.Now().Add(moment))
	if len(answer) > 0 {
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		io.CopyN(io.Discard, c, 16<<20)
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

// An UpstreamConn is the connection below the TLS with an upstream. With noWait
// set, reads do not wait for bytes.
type UpstreamConn struct {
	net.Conn
	noWait bool // only changed while nobody reads, and
	Bound  HandshakeBound
	Began  time.Time // with the handshake
	closed bool      // the upstream has closed it; for who reads
}

func (c *UpstreamConn) Read(b []byte) (int, error) {
	if c.noWait {
		return carry.ReadNow(c.Conn, b)
	}
	n, err := c.Conn.Read(b)
	c.closed = errors.Is(err, io.EOF)
	if long := c.Bound.Came(n); long != nil {
		return 0, long
	}
	return n, err
}

// A Prefixed is a connection with what was read of it put back in front.
type Prefixed struct {
	net.Conn
	First []byte
	ended atomic.Bool // the other end has ended its half, which TLS above may not have said
}

func (c *Prefixed) Read(b []byte) (int, error) {
	if len(c.First) > 0 {
		n := copy(b, c.First)
		c.First = c.First[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) {
		c.ended.Store(true)
	}
	return n, err
}

// Abort breaks c off, so that its other end cannot take what came for all.
func Abort(c net.Conn) { carry.Abort(socketOf(c)) }

// socketOf returns what is below c and its TLS.
func socketOf(c net.Conn) net.Conn {
	if tls, ok := c.(*tls.Conn); ok {
		c = tls.NetConn()
	}
	switch below := c.(type) {
	case *Prefixed:
		c = below.Conn
	case *UpstreamConn:
		c = below.Conn
	}
	return c
}
