package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

var (
	errLateConnect = errors.New("CONNECT has to be the first request of its connection")
	errUpstream    = errors.New("the upstream answered what is no response")
	errStale       = errors.New("the kept connection was closed by the upstream")
)

// errInnerConnect is a CONNECT inside an inspected tunnel.
var errInnerConnect = &http1.MalformedError{Problem: "a CONNECT inside a tunnel", Status: 405}

// exchange sends the request and passes the response on. Nothing is sent
// before the record of the request is durable.
func (v *webVisit) exchange(x *exchange) error {
	if err := v.addCredential(x); err != nil {
		return err
	}
	if err := v.reach(x, true); err != nil {
		return err
	}
	if err := x.flow.Wait(context.Background()); err != nil {
		return err
	}
	err := v.roundTrip(x)
	if errors.Is(err, errStale) {
		v.forget()
		if err := v.reach(x, false); err != nil {
			return err
		}
		err = v.roundTrip(x)
	}
	return err
}

// reach connects the flow, with what the last one kept if it may.
func (v *webVisit) reach(x *exchange, reuse bool) error {
	if v.inside != nil {
		return v.reachInside(x, reuse)
	}
	kept := v.up.kept
	v.up.kept = nil
	if x.reused = reuse && x.flow.Reuse(kept); x.reused {
		return nil
	}
	kept.Close()
	v.forget()
	conn, err := x.flow.Dial(context.Background())
	if err != nil {
		return err
	}
	v.up = upstream{conn: conn, in: v.server.readers.borrow(conn, v.server.heads.Bytes)}
	return nil
}

// reachInside keeps to the connection of the tunnel while it stands.
func (v *webVisit) reachInside(x *exchange, reuse bool) error {
	if reuse && v.up.conn != nil && v.up.quiet() {
		x.reused = v.served > 0
		return nil
	}
	v.forget()
	conn, err := v.inside.again(context.Background())
	if err != nil {
		return err
	}
	x.reused = false
	v.up = upstream{conn: conn, in: v.server.readers.borrow(conn, v.server.heads.Bytes)}
	return nil
}

// quiet reports whether the upstream of a tunnel has said nothing since its
// last response, not even an end: what it said unasked must not become the
// answer to the next request. Records that say nothing to us, such as new
// tickets, are read and do not count. It does not wait.
func (u *upstream) quiet() bool {
	secure, ok := u.conn.(*tls.Conn)
	if !ok || u.in.Buffered() > 0 {
		return false
	}
	below, ok := secure.NetConn().(*farConn)
	if !ok {
		return false
	}
	u.conn.SetReadDeadline(time.Time{})
	below.hasty = true
	defer func() { below.hasty = false }()
	_, err := u.in.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded)
}

func (v *webVisit) roundTrip(x *exchange) error {
	if err := v.sendHead(x); err != nil {
		return v.broken(x, err)
	}
	if x.body.Kind == http1.BodyNone || x.body.Kind == http1.BodyLength && x.body.Length == 0 {
		return v.receive(x)
	}
	v.extend() // the deadline was for the head
	if x.expects {
		if _, err := v.client.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return spoilt{err}
		}
	}
	x.upload = &upload{done: make(chan struct{})}
	go x.upload.run(v, x)
	err := v.receive(x)
	moment := time.Duration(0)
	if err != nil {
		moment = 50 * time.Millisecond // it may be the upload that broke the connection off
	}
	if !x.upload.over(moment) {
		// The upstream has answered before it had the whole body: what is left
		// of it has nowhere to go.
		x.keep = false
		v.stopUpload()
		<-x.upload.done
		return err
	}
	return bodyError(err, x.upload.err)
}

// An upload is the goroutine that sends a request's body while the response
// may already come.
type upload struct {
	done chan struct{}
	err  error // once done is closed
}

func (u *upload) run(v *webVisit, x *exchange) {
	defer close(u.done)
	u.err = v.sendBody(x)
}

// over reports whether the body is out, or is so within d.
func (u *upload) over(d time.Duration) bool {
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

// whole reports whether the body went out to its last byte, within d: only
// then does the client's next request begin where the connection stands.
func (u *upload) whole(d time.Duration) bool {
	return u == nil || u.over(d) && u.err == nil
}

// bodyError tells what an exchange comes to whose body may have failed. A
// client that left in the middle of it gets no answer, nor does one that has
// part of a response already.
func bodyError(received, sent error) error {
	var bad *http1.MalformedError
	var cut cutShort
	var late spoilt
	switch {
	case errors.As(received, &late):
		return received
	case errors.As(sent, &bad) && received == nil:
		return spoilt{sent}
	case errors.As(sent, &bad):
		return sent
	case errors.As(sent, &cut):
		return spoilt{sent}
	}
	return received
}

// cutShort is a body that its sender did not finish.
type cutShort struct{ error }

func (e cutShort) Unwrap() error { return e.error }

// broken tells a kept connection that had ended from one that failed.
func (v *webVisit) broken(x *exchange, err error) error {
	if x.reused && x.body.Length <= 0 && x.body.Kind != http1.BodyChunked && idempotent(x.req.Method) {
		return errStale
	}
	return errors.Join(errUpstream, err)
}

func idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "PUT", "DELETE":
		return true
	}
	return false
}

// sendHead writes the request anew, for the place that was decided.
func (v *webVisit) sendHead(x *exchange) error {
	out := http1.Fields{{Name: "Host", Value: hostField(x.dst, v.defaultPort())}}
	for _, f := range x.fields {
		if !dropped(f.Name) {
			out = append(out, f)
		}
	}
	if x.body.Kind == http1.BodyChunked {
		out = append(out, http1.Field{Name: "Transfer-Encoding", Value: "chunked"})
	}
	if x.upgrade {
		out = append(out, upgradeFields...)
	}
	v.out = http1.AppendRequest(v.out[:0], x.req.Method, x.target.RequestURI(), out)
	v.up.conn.SetDeadline(time.Now().Add(v.server.limits.Idle))
	n, err := v.up.conn.Write(v.out)
	x.end.Up += int64(n)
	return err
}

// dropped names the request fields that are written anew or not at all.
func dropped(name string) bool {
	return strings.EqualFold(name, "Host") || strings.EqualFold(name, "Expect")
}

// defaultPort is the port that a Host field leaves out.
func (v *webVisit) defaultPort() uint16 {
	if v.inside != nil {
		return 443
	}
	return 80
}

func hostField(d policy.Destination, defaultPort uint16) string {
	if d.Port == defaultPort {
		if d.Addr.Is6() {
			return "[" + d.Host + "]"
		}
		return d.Host
	}
	return d.String()
}

// sendBody streams the request's body. A body that turns out malformed breaks
// the upstream's connection off, so that it can never be taken for complete.
func (v *webVisit) sendBody(x *exchange) error {
	body := http1.NewBodyReader(v.in, x.body, v.server.heads)
	n, err := v.copyBody(v.up.conn, body, x.body.Kind == http1.BodyChunked, x.withoutTrailer())
	x.end.Up += n
	var cut cutShort
	if errors.As(err, &cut) { // where the upstream failed, its answer may be on its way
		abort(v.up.conn)
	}
	return err
}

// abort breaks c off, so that its other end cannot take what came for all.
func abort(c net.Conn) {
	if tls, ok := c.(*tls.Conn); ok {
		c = tls.NetConn()
	}
	switch below := c.(type) {
	case *prefixed:
		c = below.Conn
	case *farConn:
		c = below.Conn
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	c.Close()
}

// receive passes the response on, head and body.
func (v *webVisit) receive(x *exchange) error {
	resp, err := v.readResponse(x)
	if err != nil {
		return err
	}
	framing, err := resp.Body(x.req.Method)
	if err != nil {
		return errUpstream
	}
	x.end.Status = resp.Status
	if resp.Status == switching {
		return v.switchProtocols(x, &resp)
	}
	if err := x.searchable(resp.Fields); err != nil {
		return err
	}
	if !x.upload.whole(5 * time.Millisecond) {
		x.keep = false
	}
	upstreamKeeps := resp.Persistent() && framing.Kind != http1.BodyUntilClose
	rechunk := framing.Kind == http1.BodyChunked || framing.Kind == http1.BodyUntilClose
	if rechunk && x.req.Minor == 0 {
		x.keep = false
	}
	head, err := v.responseHead(x, &resp, rechunk && x.req.Minor == 1)
	if err != nil {
		return errUpstream
	}
	v.deadline(v.server.limits.Idle)
	err = v.answer(x, head, framing, rechunk && x.req.Minor == 1)
	if err != nil {
		return spoilt{err}
	}
	if !upstreamKeeps {
		v.dropUpstream()
	}
	return nil
}

// dropUpstream keeps finish from keeping a connection that the upstream ends.
func (v *webVisit) dropUpstream() {
	v.server.readers.giveBack(v.up.in)
	v.up.in = nil
}

// readResponse reads the final response. Interim ones are not passed on: 100
// was answered here, and the rest are hints that nobody has to give.
func (v *webVisit) readResponse(x *exchange) (http1.Response, error) {
	const interimMost = 32
	for range interimMost {
		resp, err := http1.ReadResponse(v.up.in, v.server.heads)
		switch {
		case err != nil && v.up.in.Buffered() == 0:
			return resp, v.broken(x, err)
		case err != nil || resp.Status == switching && !(x.upgrade && switchesToWebSocket(&resp)):
			return resp, errUpstream
		case resp.Status >= 200 || resp.Status == switching:
			return resp, nil
		}
	}
	return http1.Response{}, errUpstream
}

// responseHead writes the head anew. The reason phrase and the fields by
// which egressd speaks for itself cannot come from an upstream.
func (v *webVisit) responseHead(x *exchange, resp *http1.Response, chunked bool) ([]byte, error) {
	fields, err := http1.StripHopByHop(resp.Fields)
	if err != nil {
		return nil, err
	}
	out := x.shown(fields)
	if chunked {
		out = append(out, http1.Field{Name: "Transfer-Encoding", Value: "chunked"})
	}
	if !x.keep {
		out = append(out, http1.Field{Name: "Connection", Value: "close"})
	}
	v.out = http1.AppendResponse(v.out[:0], resp.Status, statusText(resp.Status), out)
	return v.out, nil
}

// reserved names the response fields that only egressd sends, and Alt-Svc,
// which names another way out.
func reserved(name string) bool {
	for _, own := range [...]string{"X-Egressd-Id", "X-Proxy-Error", "Proxy-Status", "Alt-Svc"} {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}

// answer sends head and body to the client. What is there already goes out in
// one piece with the head.
func (v *webVisit) answer(x *exchange, head []byte, framing http1.Framing, rechunk bool) error {
	whole := framing.Kind == http1.BodyLength && framing.Length <= int64(v.up.in.Buffered())
	if whole && x.secret == nil {
		body, _ := v.up.in.Peek(int(framing.Length))
		v.out = append(head, body...)
		v.up.in.Discard(len(body))
		n, err := v.client.Write(v.out)
		x.end.Down += int64(n)
		return err
	}
	n, err := v.client.Write(head)
	x.end.Down += int64(n)
	if err != nil || framing.Kind == http1.BodyNone {
		return err
	}
	if framing.Kind == http1.BodyLength && v.inside == nil {
		return v.answerLength(x, framing.Length)
	}
	body := http1.NewBodyReader(v.up.in, framing, v.server.heads)
	down, err := v.copyBody(v.client, body, rechunk, x.redactor())
	x.end.Down += down
	return err
}

// answerLength passes a body of known length on: first what is buffered, then
// between the sockets themselves, which the kernel does by splice(2).
func (v *webVisit) answerLength(x *exchange, length int64) error {
	const atOnce = 512 << 10
	n, err := io.CopyN(v.client, v.up.in, int64(v.up.in.Buffered()))
	x.end.Down += n
	for length -= n; length > 0 && err == nil; length -= n {
		v.extend()
		n, err = io.CopyN(v.client, v.up.conn, min(length, atOnce))
		x.end.Down += n
	}
	return err
}

// stopUpload ends the goroutine that reads the request's body, wherever it
// waits.
func (v *webVisit) stopUpload() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stopped = true
	v.up.conn.Close()
	v.client.SetReadDeadline(time.Now())
}

// extend gives both ends the idle time again.
func (v *webVisit) extend() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stopped {
		return
	}
	soon := time.Now().Add(v.server.limits.Idle)
	v.client.SetDeadline(soon)
	v.up.conn.SetDeadline(soon)
}

// copyBody streams a body, each part as soon as it is there, without the
// secret that strike looks for where it is not nil.
func (v *webVisit) copyBody(to io.Writer, body *http1.BodyReader, chunked bool, strike *striker) (total int64, err error) {
	buf := v.server.buffers.Get().(*[bodyBuffer]byte)
	defer v.server.buffers.Put(buf)
	bw := bufio.NewWriterSize(to, 4<<10)
	cw := http1.NewChunkedWriter(bw)
	for {
		n, err := body.Read(buf[:])
		if n > 0 {
			v.extend()
		}
		part := strike.part(buf[:n])
		ended := errors.Is(err, io.EOF)
		if ended {
			part = strike.last(part)
		}
		if len(part) > 0 {
			if err := writePart(to, bw, cw, part, chunked); err != nil {
				return total, err
			}
			total += int64(len(part))
		}
		if ended {
			return total, endBody(bw, cw, body, chunked, strike)
		}
		if err != nil {
			return total, cutShort{err}
		}
	}
}

const bodyBuffer = 32 << 10

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

func endBody(bw *bufio.Writer, cw *http1.ChunkedWriter, body *http1.BodyReader, chunked bool, strike *striker) error {
	if !chunked {
		return nil
	}
	if err := cw.Close(strike.trailer(body.Trailer)); err != nil {
		return err
	}
	return bw.Flush()
}
