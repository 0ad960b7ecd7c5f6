package exchange

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/http1"
)

// An upload is the goroutine that sends a request's body while the response
// may already come.
type upload struct {
	done    chan struct{}
	err     error         // once done is closed
	wanted  chan struct{} // closed once it is known whether the body goes up
	forgone bool          // it does not; once wanted is closed
	once    sync.Once
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

// forgo has the body stay, unless it has begun to go up: the upstream has answered without it. It reports whether there is a
// body that stays.
func (u *upload) forgo() bool {
	if u == nil {
		return false
	}
	u.once.Do(func() { u.forgone = true; close(u.wanted) })
	return u.forgone
}

var errForgone = errors.New("the upstream answered before it asked for the body")

func (u *upload) run(x *h1Exchange) {
	defer close(u.done)
	patience := time.NewTimer(ExpectPatience)
	defer patience.Stop()
	select {
	case <-u.wanted:
	case <-patience.C:
		u.begin()
	case <-x.conn.ctx.Done():
		u.err = incompleteBody{net.ErrClosed}
		return
	}
	if u.forgone {
		u.err = errForgone
		return
	}
	u.err = x.sendBody()
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

// sendBody streams the request's body. A body that turns out malformed breaks
// the upstream's connection off, so that it can never be taken for complete.
func (x *h1Exchange) sendBody() error {
	v := x.conn
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
