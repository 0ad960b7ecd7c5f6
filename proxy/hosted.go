package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A hosted is a client connection that a goroutine serves: SOCKS5 until it is
// a tunnel, plain HTTP, and what is inside an inspected tunnel.
type client struct {
	server    *Server
	raw       net.Conn    // the client's connection
	conn      net.Conn    // raw, or the TLS on it
	loop      *relay.Loop // where its tunnel will live
	peer      sandbox.Peer
	came      sandbox.Peer // peer, as it came; final
	tlsClient *tlsClient   // of a TLS listener, or nil
	first     []byte       // read already
	via       policy.Via
	admission admission
	tunnelTo  *policy.Destination // of the tunnel that the client speaks HTTP in, or nil

	capturedTo *policy.Destination // the address that a captured connection was going to, where no name is known for it
}

// lose implements [loser].
func (h *client) evict() {
	h.server.refuseOneMore(h.came)
	abort(h.raw)
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
