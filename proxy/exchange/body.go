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

func (u *upload) run(x *h1Exchange) {
	defer close(u.done)
	patience := time.NewTimer(ExpectPatience)
	defer patience.Stop()
	select {
	case <-u.wanted:
	case <-patience.C:
	case <-x.conn.ctx.Done():
		u.err = incompleteBody{net.ErrClosed}
		return
	}
	u.err = x.conn.sendBody(x)
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

// Together tells what an exchange comes to whose request's body may have failed. A
// client that left in the middle of it gets no answer, nor does one that has
// part of a response already.
func Together(received, sent error) error {
	var bad *http1.MalformedError
	var cut incompleteBody
	var late unanswerable
	switch {
	case refusalIn(sent) != nil:
		return overBudget(received, sent)
	case errors.As(sent, &bad) && (received == nil || errors.As(received, &late)):
		return unanswerable{sent}
	case errors.As(received, &late):
		return received
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
	closed  bool       // nobody wants the rest
	dropped bool
}

// newBody returns what passes of a body. filter may be nil.
func newBody(from io.Reader, filter *BodyFilter, passes func(n int) error, moved func()) *PassingBody {
	return &PassingBody{from: from, filter: filter, passes: passes, moved: moved}
}

// allPass is a PassingBody's passes where nothing is counted before it passes.
func allPass(int) error { return nil }

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
	switch {
	case over != nil:
		part, err = nil, over
	case b.closed && err != nil && !last:
		err = net.ErrClosed
	}
	b.ready, b.err = part, err
}

// Drop lets go of what is held, which nobody gets any more. It returns why the body failed before, or nil. A nil body holds
// nothing.
func (b *PassingBody) Drop() error {
	if b == nil {
		return nil
	}
	b.filter.cancelTurn() // or the mutex may be held for long
	b.mu.Lock()
	defer b.mu.Unlock()
	failed := b.err
	if errors.Is(failed, io.EOF) || errors.Is(failed, net.ErrClosed) {
		failed = nil
	}
	b.filter, b.ready, b.dropped = nil, nil, true
	if b.err == nil {
		b.err = net.ErrClosed
	}
	return failed
}

// Close closes what the body is read from, if that can be closed. That the rest cannot be read is no failure then.
func (b *PassingBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	if c, ok := b.from.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// sendBody streams the request's body. A body that turns out malformed breaks
// the upstream's connection off, so that it can never be taken for complete.
func (v *h1Conn) sendBody(x *h1Exchange) error {
	err := v.copyBody(v.up.conn, x.Upload(v.ctx, v.extend), x.body.Kind == http1.BodyChunked, ignore, noTrailer)
	var cut incompleteBody
	if errors.As(err, &cut) || refusalIn(err) != nil { // where the upstream failed, its answer may be on its way
		Abort(v.up.conn)
	}
	return err
}

// noTrailer has no field pass behind a request, which the policy has not judged: it could repeat one that was judged, or the
// credential.
func noTrailer() http1.Fields { return nil }

func ignore(int) {}

// answerLength passes a body of known length on: first what is buffered, then
// between the sockets themselves, which the kernel does by splice(2).
func (v *h1Conn) answerLength(x *h1Exchange, length int64) error {
	const atOnce = 512 << 10
	n, err := io.CopyN(v.Conn, v.up.in, int64(v.up.in.Buffered()))
	x.CountDown(int(n))
	for length -= n; length > 0 && err == nil; length -= n {
		v.extend()
		n, err = io.CopyN(v.Conn, v.up.conn, min(length, atOnce))
		x.CountDown(int(n))
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

// copyBody passes a body on to one end. wrote is told of the bytes that are out. trailer returns the fields that pass behind
// a body in chunks.
func (v *h1Conn) copyBody(to io.Writer, from *PassingBody, chunked bool, wrote func(n int), trailer func() http1.Fields) error {
	if !chunked {
		return v.Forwarder.Pass(to, from, wrote)
	}
	bw := bufio.NewWriterSize(to, 4<<10)
	cw := http1.NewChunkedWriter(bw)
	if err := v.Forwarder.Pass(chunks{bw, cw}, from, wrote); err != nil {
		return err
	}
	if err := cw.Close(trailer()); err != nil {
		return err
	}
	return bw.Flush()
}

// chunks writes each part as a chunk of its own, at once.
type chunks struct {
	bw *bufio.Writer
	cw *http1.ChunkedWriter
}

func (c chunks) Write(b []byte) (int, error) {
	n, err := c.cw.Write(b)
	if err != nil {
		return n, err
	}
	return n, c.bw.Flush()
}

// Pass copies a body, each part as soon as it is there. wrote is told of the bytes that are out. An error of reading is a
// [*egress.Refusal] or an incompleteBody.
func (s *Forwarder) Pass(to io.Writer, from *PassingBody, wrote func(n int)) error {
	buf := s.Buffers.Get().(*[BodyBuffer]byte)
	defer s.Buffers.Put(buf)
	for {
		n, err := from.Read(buf[:])
		if n > 0 {
			n, err := to.Write(buf[:n])
			if wrote(n); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case refusalIn(err) != nil:
			return err
		case err != nil:
			return incompleteBody{err}
		}
	}
}

const BodyBuffer = 32 << 10

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
