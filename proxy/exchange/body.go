package exchange

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
)

// An upload is the goroutine that sends a request's body while the response
// may already come.
type upload struct {
	done   chan struct{}
	err    error // once done is closed
	wanted chan struct{}
	once   sync.Once
}

// ExpectPatience is how long a body waits for the upstream's 100 (Continue). Upstreams need not know of it (RFC 9110
// section 10.1.1), and clients wait no longer.
const ExpectPatience = time.Second

// begin has the body go up. A nil upload has none.
func (u *upload) begin() {
	if u != nil {
		u.once.Do(func() { close(u.wanted) })
	}
}

func (u *upload) run(v *h1Conn, x *exchange) {
	defer close(u.done)
	patience := time.NewTimer(ExpectPatience)
	defer patience.Stop()
	select {
	case <-u.wanted:
	case <-patience.C:
	case <-v.ctx.Done():
		u.err = incompleteBody{net.ErrClosed}
		return
	}
	u.err = v.sendBody(x)
}

// doneWithin reports whether the body is out, or is so within d.
func (u *upload) doneWithin(d time.Duration) bool {
	if u == nil {
		return true
	}
	select {
	case <-u.done:
		return true
	default:
	}
	if d == 0 {
		return false
	}
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-u.done:
		return true
	case <-wait.C:
		return false
	}
}

// complete reports whether the body went out to its last byte, within d: only
// then does the client's next request begin where the connection stands.
func (u *upload) complete(d time.Duration) bool {
	return u == nil || u.doneWithin(d) && u.err == nil
}

// bodyError tells what an exchange comes to whose body may have failed. A
// client that left in the middle of it gets no answer, nor does one that has
// part of a response already.
func bodyError(received, sent error) error {
	var bad *http1.MalformedError
	var cut incompleteBody
	var late unanswerable
	switch {
	case refusalIn(sent) != nil:
		return overBudget(received, sent)
	case errors.As(received, &late):
		return received
	case errors.As(sent, &bad) && received == nil:
		return unanswerable{sent}
	case errors.As(sent, &bad):
		return sent
	case errors.As(sent, &cut) && (errors.Is(sent, os.ErrDeadlineExceeded) || errors.Is(sent, net.ErrClosed)):
		return unanswerable{sent}
	case errors.As(sent, &cut):
		return unanswerable{incompleteUpload{sent}}
	}
	return received
}

// An incompleteUpload is the body of a request whose client has left.
type incompleteUpload struct{ error }

func (e incompleteUpload) Unwrap() error { return e.error }

// incompleteBody is a body that its sender did not finish.
type incompleteBody struct{ error }

func (e incompleteBody) Unwrap() error { return e.error }

// A PassingBody is a message's body as it passes, part by part: searched for canaries or struck of credentials, and counted.
// Its reader may be left waiting after the exchange is over: see [PassingBody.Drop].
type PassingBody struct {
	from   io.Reader
	filter *BodyFilter       // nil: all of it passes as it is
	passes func(n int) error // is asked before n bytes pass
	moved  func()            // is told when some have come

	mu      sync.Mutex // guards what follows, and is not held while more is read
	ready   []byte     // and not yet read
	err     error      // behind that
	dropped bool
}

// NewBody returns what passes of a body. filter may be nil.
func NewPassingBody(from io.Reader, filter *BodyFilter, passes func(n int) error, moved func()) *PassingBody {
	return &PassingBody{from: from, filter: filter, passes: passes, moved: moved}
}

// Read implements [io.Reader]. An error of passes or of a search is a [*egress.Refusal]; then no more passes.
func (b *PassingBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.ready) == 0 && b.err == nil && len(p) > 0 {
		b.mu.Unlock()
		n, err := b.from.Read(p)
		if n > 0 {
			b.moved()
		}
		b.mu.Lock()
		b.take(p[:n], err)
	}
	if len(b.ready) == 0 {
		return 0, b.err
	}
	n := min(len(p), len(b.ready))
	if over := b.passes(n); over != nil {
		b.ready, b.err = nil, over
		return 0, over
	}
	copy(p, b.ready)
	if b.ready = b.ready[n:]; len(b.ready) == 0 {
		b.ready = nil
		b.filter.sent()
	}
	return n, nil
}

// take takes what was read. b.mu is held.
func (b *PassingBody) take(part []byte, err error) {
	if b.dropped {
		return
	}
	last := errors.Is(err, io.EOF)
	part = b.filter.Redact(part)
	if last {
		part = b.filter.RedactLast(part)
	}
	part, over := b.filter.scan(part, last)
	if over != nil {
		part, err = nil, over
	}
	b.ready, b.err = part, err
}

// Refusal returns why nothing more of the body may pass, or nil.
func (b *PassingBody) Refusal() *egress.Refusal {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return refusalIn(b.err)
}

// Drop lets go of what is held, which nobody gets any more. A nil body holds nothing.
func (b *PassingBody) Drop() {
	if b == nil {
		return
	}
	b.filter.cancelTurn() // or the mutex may be held for long
	b.mu.Lock()
	defer b.mu.Unlock()
	b.filter, b.ready, b.dropped = nil, nil, true
	if b.err == nil {
		b.err = net.ErrClosed
	}
}

// Close closes what the body is read from, if that can be closed.
func (b *PassingBody) Close() error {
	if c, ok := b.from.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// sendBody streams the request's body. A body that turns out malformed breaks
// the upstream's connection off, so that it can never be taken for complete.
func (v *h1Conn) sendBody(x *exchange) error {
	body := x.reader
	if body == nil {
		body = http1.NewBodyReader(v.in, x.body, v.Forwarder.Heads)
	}
	packed := v.Forwarder.BodyMemory.Reserve(x.flow.Holder(), x.flow.Sandbox())
	defer packed.Release()
	n, err := v.copyBody(v.up.conn, body, x.body.Kind == http1.BodyChunked, x.requestFilter(packed, v.scanTurn(x)), x.allowUp)
	x.end.Up += n
	var cut incompleteBody
	if errors.As(err, &cut) || refusalIn(err) != nil { // where the upstream failed, its answer may be on its way
		Abort(v.up.conn)
	}
	return err
}

// answerLength passes a body of known length on: first what is buffered, then
// between the sockets themselves, which the kernel does by splice(2).
func (v *h1Conn) answerLength(x *exchange, length int64) error {
	const atOnce = 512 << 10
	n, err := io.CopyN(v.Conn, v.up.in, int64(v.up.in.Buffered()))
	x.addDown(n)
	for length -= n; length > 0 && err == nil; length -= n {
		v.extend()
		n, err = io.CopyN(v.Conn, v.up.conn, min(length, atOnce))
		x.addDown(n)
	}
	return err
}

// stopUpload ends the goroutine that reads the request's body, wherever it
// waits.
func (v *h1Conn) stopUpload() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stopped = true
	v.cancel()
	v.up.conn.Close()
	v.Conn.SetReadDeadline(time.Now())
}

// extend gives both ends the idle time again.
func (v *h1Conn) extend() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stopped {
		return
	}
	soon := time.Now().Add(v.Forwarder.Limits.Idle)
	v.Conn.SetDeadline(soon)
	v.up.conn.SetDeadline(soon)
}

// copyBody streams a body, each part as soon as it is there, through filter, which may be nil. passes is asked about each part
// before it is written.
func (v *h1Conn) copyBody(to io.Writer, body *http1.BodyReader, chunked bool, filter *BodyFilter, passes func(n int) error) (total int64, err error) {
	buf := v.Forwarder.Buffers.Get().(*[BodyBuffer]byte)
	defer v.Forwarder.Buffers.Put(buf)
	passing := NewPassingBody(body, filter, passes, v.extend)
	bw := bufio.NewWriterSize(to, 4<<10)
	cw := http1.NewChunkedWriter(bw)
	for {
		n, err := passing.Read(buf[:])
		if n > 0 {
			if err := writePart(to, bw, cw, buf[:n], chunked); err != nil {
				return total, err
			}
			total += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return total, endBody(bw, cw, body, chunked, filter)
		case refusalIn(err) != nil:
			return total, err
		case err != nil:
			return total, incompleteBody{err}
		}
	}
}

const BodyBuffer = 32 << 10

func writePart(to io.Writer, bw *bufio.Writer, cw *http1.ChunkedWriter, b []byte, chunked bool) error {
	if !chunked {
		_, err := to.Write(b)
		return err
	}
	if _, err := cw.Write(b); err != nil {
		return err
	}
	return bw.Flush()
}

func endBody(bw *bufio.Writer, cw *http1.ChunkedWriter, body *http1.BodyReader, chunked bool, filter *BodyFilter) error {
	if !chunked {
		return nil
	}
	if err := cw.Close(filter.trailer(body.Trailer)); err != nil {
		return err
	}
	return bw.Flush()
}

// allowUp counts n more bytes of the request's body, or of the WebSocket that it
// became, before they are sent. Beyond the budget the error is a [*egress.Refusal],
// and none of them may go.
func (x *exchange) allowUp(n int) error {
	if most := x.flow.Budget(); most > 0 && x.payload+int64(n) > most {
		return x.flow.Exceeded()
	}
	x.payload += int64(n)
	x.meter.Up.Add(int64(n))
	return nil
}

func (x *exchange) countDown(n int) error {
	x.meter.Down.Add(int64(n))
	return nil
}

// addDown counts what went to the client.
func (x *exchange) addDown(n int64) {
	x.end.Down += n
	x.meter.Down.Add(n)
}

func refusalIn(err error) (r *egress.Refusal) {
	errors.As(err, &r)
	return r
}

// overBudget tells an exchange whose body was more than may go up from what its
// other half came to. One that has part of a response cannot be answered any more.
func overBudget(received, sent error) error {
	var late unanswerable
	switch {
	case refusalIn(sent) == nil:
		return received
	case received == nil, errors.As(received, &late):
		return unanswerable{sent}
	}
	return sent
}
