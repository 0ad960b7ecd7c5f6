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
type hosted struct {
	server *Server
	raw    net.Conn    // the client's connection
	client net.Conn    // raw, or the TLS on it
	loop   *relay.Loop // where its tunnel will live
	peer   sandbox.Peer
	came   sandbox.Peer // peer, as it came; final
	front  *front       // of a TLS listener, or nil
	first  []byte       // read already
	via    policy.Via
	place  place
	within *policy.Destination // of the tunnel that the client speaks HTTP in, or nil

	captured *policy.Destination // the address that a captured connection was going to, where no name is known for it
}

// lose implements [loser].
func (h *hosted) lose() {
	h.server.refuseOneMore(h.came)
	abort(h.raw)
}

// Read reads what was read already, then from the client.
func (h *hosted) Read(b []byte) (int, error) {
	if len(h.first) > 0 {
		n := copy(b, h.first)
		h.first = h.first[n:]
		return n, nil
	}
	h.first = nil
	return h.client.Read(b)
}

// deadline gives the client d for what comes next.
func (h *hosted) deadline(d time.Duration) { h.client.SetDeadline(time.Now().Add(d)) }

// lastWord sends the last answer and leaves the client a moment to take it.
func (h *hosted) lastWord(answer []byte) {
	const moment = time.Second
	h.deadline(moment)
	if _, err := h.client.Write(answer); err != nil {
		return
	}
	if half, ok := h.client.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		io.CopyN(io.Discard, h.client, 1<<20)
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
