package exchange

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/carry"
)

// errClientLeft is why the context of an exchange ended whose client went away.
var errClientLeft = errors.New("the client has left")

// watchEvery is the time between two looks at a client's connection.
const watchEvery = 250 * time.Millisecond

// A ClientWatch looks at a client's connection while something else is waited for, until the client is gone. Between two looks it
// costs a timer.
type ClientWatch struct {
	gone func() bool
	left func()

	mu   sync.Mutex // held during a look; guards what follows
	next *time.Timer
	over bool
}

// NewClientWatch begins to look with gone, and calls left once that says so. The caller calls End.
func NewClientWatch(gone func() bool, left func()) *ClientWatch {
	w := &ClientWatch{gone: gone, left: left}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = time.AfterFunc(watchEvery, w.look)
	return w
}

// End waits for a look under way. It may be called twice. A nil ClientWatch has ended.
func (w *ClientWatch) End() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.next.Stop()
}

func (w *ClientWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over:
	case w.gone():
		w.left()
	default:
		w.next.Reset(watchEvery)
	}
}

// watch ends the exchange's context with errClientLeft once the client is gone: it has reset its connection, or ended its
// TLS without close_notify. The end of its half alone (FIN, close_notify) may come from a client that still waits for its
// response. Until the watch has ended, nobody else reads from the client.
func (x *h1Exchange) watch() *ClientWatch {
	told := false // the client's half has ended, and it is known how
	return NewClientWatch(func() bool {
		ended, gone := carry.State(x.conn.Raw)
		if !gone && ended && !told && x.upload.doneWithin(0) {
			gone, told = x.conn.cutShort()
		}
		return gone
	}, func() { x.Leave(errClientLeft) })
}

// cutShort reads what the client has sent up to the end of its half, and reports whether its TLS was cut short there.
// It does not wait. Bytes of next requests stay in the reader; if there are more than fit, it cannot be told.
func (v *h1Conn) cutShort() (cut, told bool) {
	below := belowTLS(v.Conn)
	if below == nil {
		return false, true
	}
	for v.in.Buffered() < v.in.Size() {
		if _, err := v.in.Peek(v.in.Buffered() + 1); err != nil {
			return !errors.Is(err, io.EOF) || below.ended.Load(), true
		}
	}
	return false, false
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

// A clientContext is a context that is cancelled when the client disconnects, for goroutines that wait while nobody reads
// from the connection. Err looks at the connection at once. A client that sends no more (FIN) counts as gone: egressd cannot
// tell it from a client that still reads.
type clientContext struct {
	context.Context
	cancel context.CancelFunc
	client net.Conn
	watch  *ClientWatch
}

// Context returns a context that ends when the client disconnects. The caller has to call Release.
func (h *Client) Context() *clientContext {
	ctx, cancel := context.WithCancel(context.Background())
	return &clientContext{ctx, cancel, h.Raw, NewClientWatch(func() bool { return ended(h.Raw) }, cancel)}
}

// Release ends the context.
func (p *clientContext) Release() {
	p.watch.End()
	p.cancel()
}

// Err implements [context.Context].
func (p *clientContext) Err() error {
	if p.Context.Err() == nil && ended(p.client) {
		p.cancel()
	}
	return p.Context.Err()
}

// ended reports whether a peer sends no more, whatever it sent before.
func ended(c net.Conn) bool {
	ended, _ := carry.State(c)
	return ended
}
