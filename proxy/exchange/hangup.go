package exchange

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/carry"
)

// ClientLeft is the outcome of a request whose client went away before it had its response.
const ClientLeft = "client-left"

// errClientLeft is why the context of an exchange ended whose client went away.
var errClientLeft = errors.New("the client has left")

// pollEvery is the time between two looks at a client's connection.
const pollEvery = 250 * time.Millisecond

// A hangup looks at a client's connection while an exchange waits for something else, and ends the exchange's context
// with errClientLeft once the client is gone: it has reset its connection, or ended its TLS without close_notify. The
// end of its half alone (FIN, close_notify) may come from a client that still waits for its response.
//
// Between two looks it costs a timer.
type hangup struct {
	v    *h1Conn
	x    *h1Exchange
	mu   sync.Mutex // held during a look; guards what follows
	next *time.Timer
	over bool
	told bool // the client's half has ended, and orderly
}

// watch begins to look. The caller calls end.
func (x *h1Exchange) watch() *hangup {
	v := x.conn
	h := &hangup{v: v, x: x}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = time.AfterFunc(pollEvery, h.look)
	return h
}

// end waits for a look under way. From then on the caller may read from the client. It may be called twice. A nil hangup has ended.
func (h *hangup) end() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	h.next.Stop()
}

func (h *hangup) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return
	}
	ended, gone := socketEnd(h.v.Raw)
	if !gone && ended && !h.told && h.x.upload.doneWithin(0) {
		gone = h.cutShort()
	}
	if gone {
		h.x.Leave(errClientLeft)
		return
	}
	h.next.Reset(pollEvery)
}

// cutShort reads what the client has sent up to the end of its half, and reports whether its TLS was cut short there.
// It does not wait. Bytes of next requests stay in the reader; if there are more than fit, cutShort cannot tell.
func (h *hangup) cutShort() bool {
	below := belowTLS(h.v.Conn)
	if below == nil {
		h.told = true
		return false
	}
	for in := h.v.in; in.Buffered() < in.Size(); {
		if _, err := in.Peek(in.Buffered() + 1); err != nil {
			h.told = true
			return !errors.Is(err, io.EOF) || below.ended.Load()
		}
	}
	return false
}

// belowTLS returns what is below a client's TLS, or nil.
func belowTLS(c net.Conn) *Prefixed {
	over, ok := c.(interface{ NetConn() net.Conn })
	if !ok {
		return nil
	}
	below, _ := over.NetConn().(*Prefixed)
	return below
}

// socketEnd reports whether the peer of a connection has stopped sending, and whether the peer has closed both directions.
func socketEnd(c net.Conn) (ended, gone bool) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return false, false
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { ended, gone = carry.State(int(fd)) })
	}
	return ended || err != nil, gone // an error: it was closed here
}

// A clientContext is a context that is cancelled when the client disconnects, for goroutines that wait
// while nobody reads from the connection. It looks at the connection four times a second once
// somebody has called Done, and whenever somebody calls Err. A client that sends no more (FIN)
// counts as gone: egressd cannot tell it from a client that still reads.
type clientContext struct {
	context.Context
	raw     net.Conn // the client's connection
	looking sync.WaitGroup

	mu       sync.Mutex    // guards what follows
	done     chan struct{} // closed once the client has left; nil before somebody asks
	gone     bool          // gone is closed
	stop     chan struct{} // ends look; nil where it does not run
	released bool
}

// Context returns a context that ends when the client disconnects. The caller has to call Release.
func (h *Client) Context() *clientContext {
	return &clientContext{Context: context.Background(), raw: h.Raw}
}

// Release ends the context's goroutine and waits for it.
func (p *clientContext) Release() {
	p.mu.Lock()
	over := p.stop
	p.released, p.stop = true, nil
	p.mu.Unlock()
	if over != nil {
		close(over)
	}
	p.looking.Wait()
}

// Done implements [context.Context].
func (p *clientContext) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = make(chan struct{})
	}
	if !p.gone && !p.released && p.stop == nil {
		over := make(chan struct{})
		p.stop = over
		p.looking.Go(func() { p.poll(over) })
	}
	return p.done
}

// Err implements [context.Context]. It looks at the connection, and closes Done before it
// returns an error.
func (p *clientContext) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone && ended(p.raw) {
		if p.done == nil {
			p.done = make(chan struct{})
		}
		p.gone = true
		close(p.done)
	}
	if p.gone {
		return context.Canceled
	}
	return nil
}

func (p *clientContext) poll(over <-chan struct{}) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for p.Err() == nil {
		select {
		case <-tick.C:
		case <-over:
			return
		}
	}
}

// ended reports whether a peer sends no more, whatever it sent before.
func ended(c net.Conn) bool {
	ended, _ := socketEnd(c)
	return ended
}
