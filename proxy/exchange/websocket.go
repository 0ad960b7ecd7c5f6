package exchange

import (
	"cmp"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/record"
)

const protocolWebSocket = "websocket"

var errUpgrade = &http1.MalformedError{Problem: "an Upgrade that names no protocol", Status: 400}

// protocolsOf returns the protocols that a request asks to change to (RFC 9110 §7.8), as it lists them, or "". An
// offer of HTTP/2 with its settings (RFC 7540 §3.2) is none: it asks for the same response in another form, and
// HTTP/1.1 is as good an answer.
func protocolsOf(req *http1.Request) (string, error) {
	values := req.Fields.Values("Upgrade")
	if req.Minor == 0 || len(values) == 0 || !req.Fields.HasToken("Connection", "Upgrade") {
		return "", nil
	}
	list := strings.Join(values, ", ")
	for protocol := range strings.SplitSeq(list, ",") {
		name, version, versioned := strings.Cut(strings.Trim(protocol, " \t"), "/")
		if !(http1.Field{Name: name}).Valid() || versioned && !(http1.Field{Name: version}).Valid() {
			return "", errUpgrade
		}
	}
	if strings.EqualFold(list, "h2c") && len(req.Fields.Values("HTTP2-Settings")) == 1 {
		return "", nil
	}
	return list, nil
}

// asksWebSocket reports whether a request that asks for protocols opens a WebSocket (RFC 6455 §4.1).
func asksWebSocket(req *http1.Request, body http1.Framing, protocols string) bool {
	return req.Method == "GET" && body.Kind == http1.BodyNone && strings.EqualFold(protocols, protocolWebSocket) && len(req.Fields.Values(webSocketKey)) == 1
}

// upgradeFields ask for protocols, or change to one.
func upgradeFields(protocols string) http1.Fields {
	return http1.Fields{{Name: "Connection", Value: "Upgrade"}, {Name: "Upgrade", Value: protocols}}
}

// accepts reports whether a 101 changes to what the request asked for.
func (x *h1Exchange) accepts(resp *http1.Response) bool {
	switch {
	case x.WebSocket:
		return x.acceptsWebSocket(resp)
	case x.protocols == "" || !resp.Fields.HasToken("Connection", "Upgrade") || !resp.Fields.Has("Upgrade"):
		return false
	}
	offered := http1.Fields{{Name: "Upgrade", Value: x.protocols}}
	for protocol := range strings.SplitSeq(strings.Join(resp.Fields.Values("Upgrade"), ","), ",") {
		if !offered.HasToken("Upgrade", strings.Trim(protocol, " \t")) {
			return false
		}
	}
	return true
}

const (
	webSocketKey  = "Sec-WebSocket-Key"
	webSocketGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455 §1.3
)

// switchesToWebSocket reports whether a response opens the WebSocket that req asks for. The accept value
// proves that the server understood the request: a server that repeats fields, or a status that it was sent,
// cannot compute it.
func switchesToWebSocket(req *http1.Request, resp *http1.Response) bool {
	accepts := resp.Fields.Values("Sec-WebSocket-Accept")
	sum := sha1.Sum([]byte(strings.TrimSpace(req.Fields.Get(webSocketKey)) + webSocketGUID))
	return resp.Fields.HasToken("Connection", "Upgrade") && onlyWebSocket(resp.Fields) &&
		len(accepts) == 1 && strings.TrimSpace(accepts[0]) == base64.StdEncoding.EncodeToString(sum[:])
}

// acceptsWebSocket reports whether a response opens the WebSocket that the request asked for, with no
// extension that the request did not offer (RFC 6455 §4.1). The forwarder removes offered extensions if the
// messages have to be scanned, because a compressed message cannot be scanned.
func (x *h1Exchange) acceptsWebSocket(resp *http1.Response) bool {
	const extensions = "Sec-WebSocket-Extensions"
	return switchesToWebSocket(&x.req, resp) &&
		(len(x.Fields.Values(extensions)) > 0 || strings.Join(resp.Fields.Values(extensions), "") == "")
}

func onlyWebSocket(f http1.Fields) bool {
	values := f.Values("Upgrade")
	return len(values) == 1 && strings.EqualFold(strings.TrimSpace(values[0]), "websocket")
}

// switchProtocols passes the consent of the upstream on, and then the bytes of the
// other protocol both ways until both sides end.
func (x *h1Exchange) switchProtocols(r *http1.Response) error {
	v := x.conn
	x.keep = false
	if x.upload != nil { // the bytes behind the request's body are of the other protocol
		if <-x.upload.done; x.upload.err != nil {
			return Together(nil, x.upload.err)
		}
	}
	x.hangup.End() // the streams see how they end
	v.out = http1.AppendResponse(v.out[:0], r.Status, answer.StatusText(r.Status), append(r.Fields, upgradeFields(x.changesTo)...))
	v.Deadline(v.Forwarder.Limits.Idle)
	n, err := v.Conn.Write(v.out)
	x.CountDown(n)
	if err == nil {
		x.relay()
		if over := x.ended(); over != nil {
			err = over
		}
	}
	v.dropUpstream()
	return err
}

// relay lets another protocol be for as long as a tunnel may. One inside a tunnel
// ends with that.
func (x *h1Exchange) relay() {
	v := x.conn
	if v.tunnel == nil {
		tooOld := time.AfterFunc(v.Forwarder.Limits.Lifetime, func() { v.windDown(errTooOld) })
		defer tooOld.Stop()
	}
	x.bothWays()
	x.end.Outcome = x.outcome(cmp.Or(x.end.Outcome, v.relayEnd()))
}

var (
	errTooOld = errors.New("the other protocol has lasted as long as it may")
	errGone   = errors.New("one end has broken off after it had sent all")
)

// relayEnd returns the outcome of a relay that no refusal ended.
func (v *h1Conn) relayEnd() record.Outcome {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.failed == nil:
		return record.OutcomeClosed
	case errors.Is(v.failed, errTooOld):
		return record.OutcomeLifetime
	case errors.Is(v.failed, os.ErrDeadlineExceeded):
		return record.OutcomeIdle
	}
	return record.OutcomeReset
}

// bothWays carries bytes both ways. The end of one side is passed on, and the other side goes on. A WebSocket has no half:
// its other side has a moment then. A failure of one side breaks both off, so that nobody takes a part for the whole.
func (x *h1Exchange) bothWays() {
	v := x.conn
	watch := NewClientWatch(v.halfGone, func() { v.windDown(errGone) })
	up := make(chan error)
	go func() {
		err := v.pump(v.up.conn, v.in, x.streamScanner(v.Forwarder.ScanTurn(v.ctx, x.Flow)), x.allowUp, ignore)
		if refusalIn(err) != nil {
			Abort(v.up.conn)
		}
		x.sideEnded(&v.clientEnd, v.up.conn, err)
		up <- err
	}()
	err := v.pump(v.Conn, v.up.in, x.streamFilter(), allPass, x.CountDown)
	if over := refusalIn(err); over != nil {
		x.end.Outcome = record.Outcome(over.Decision.Class)
	}
	x.sideEnded(&v.serverEnd, v.Conn, err)
	if over := refusalIn(<-up); over != nil {
		x.end.Outcome = record.Outcome(over.Decision.Class)
	}
	watch.End()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closeTimer != nil {
		v.closeTimer.Stop()
	}
	v.ended = true
	if v.failed != nil {
		Abort(v.up.conn)
		Abort(v.Conn)
	}
}

// sideEnded notes the end of one side, and passes it on if it was in order.
func (x *h1Exchange) sideEnded(side *bool, to net.Conn, err error) {
	v := x.conn
	v.mu.Lock()
	*side = true // before the other end may leave for it, see halfGone
	v.mu.Unlock()
	if err == nil {
		halfClose(to)
	}
	if err != nil || x.WebSocket {
		v.windDown(err)
	}
}

// halfGone reports whether an end is gone that had sent all before: nobody reads from it any more, who would see that.
func (v *h1Conn) halfGone() bool {
	v.mu.Lock()
	client, server := v.clientEnd, v.serverEnd
	v.mu.Unlock()
	if client == server {
		return false
	}
	half := v.Raw
	if server {
		half = socketOf(v.up.conn)
	}
	_, gone := carry.State(half)
	v.mu.Lock()
	defer v.mu.Unlock()
	return gone && v.clientEnd != v.serverEnd // or it is gone since the other end was passed on
}

// streamScanner returns what looks at what the client sends in another protocol, or nil where there are no canaries.
// Only a WebSocket has messages.
func (x *h1Exchange) streamScanner(turns scanTurn) bodyFilter {
	if x.WebSocket {
		return newMessageScanner(x.Flow, turns)
	}
	if guard := x.Flow.Guard("body"); guard != nil {
		return &bodyScanner{flow: x.Flow, guard: guard, turn: turns, begun: true}
	}
	return nil
}

// streamFilter returns what strikes the host's credentials out of what the upstream sends in another protocol, or nil.
func (x *h1Exchange) streamFilter() bodyFilter {
	if x.WebSocket {
		return x.messageFilter()
	}
	return x.responseFilter()
}

// windDown leaves both ends a moment to finish after one has ended, and none
// after one has failed or was cut.
func (v *h1Conn) windDown(failed error) {
	const moment = 5 * time.Second
	until := time.Now()
	if failed == nil {
		until = until.Add(moment)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended { // the timer of its lifetime went off as it ended
		return
	}
	if !v.stopped {
		v.failed = failed
	}
	v.stopped = true // from here on no deadline is extended
	if v.closeTimer == nil {
		v.closeTimer = time.AfterFunc(time.Until(until), v.cancel)
	}
	if failed != nil {
		v.cancel()
	}
	v.Conn.SetDeadline(until)
	v.up.conn.SetDeadline(until)
}

// pump carries bytes one way until from ends, each part as soon as it is there and passes has let it.
func (v *h1Conn) pump(to io.Writer, from io.Reader, filter bodyFilter, passes func(n int) error, wrote func(n int)) error {
	stream := untilEnd{Reader: from}
	if err := v.Forwarder.Pass(to, newBody(&stream, filter, passes, v.extend), wrote); err != nil {
		return err
	}
	return stream.failure
}

// untilEnd reads a stream that has no end of its own, to whatever ends it: how it ended is for its two ends to say.
type untilEnd struct {
	io.Reader
	failure error // of the connection; nil if it was closed
}

func (s *untilEnd) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		s.failure = err
	}
	if err != nil {
		err = io.EOF
	}
	return n, err
}

func halfClose(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
}

// Frames of a WebSocket: kinds and bits of the first two bytes (RFC 6455 §5.2).
const (
	frameLast     = 0x80 // of its message
	frameReserved = 0x70 // for extensions
	frameKind     = 0x0f
	frameMasked   = 0x80 // in the second byte
	frameLength   = 0x7f

	kindContinued = 0
	kindText      = 1
	kindBinary    = 2
	kindClose     = 8
	kindPing      = 9
	kindPong      = 10

	controlMost = 125 // bytes of a control frame (RFC 6455 §5.5)
)

// A frameReader reads the heads of the frames that one end of a WebSocket sends. It
// accepts what RFC 6455 §5 lets that end send where no extension was agreed on.
type frameReader struct {
	fromClient bool // whose frames are masked, and no others (§5.1)

	head    []byte // of the frame that comes, until it is complete
	left    uint64 // bytes of payload that have yet to come
	mask    [4]byte
	control bool
	last    bool // of its message
	open    bool // a message has begun and not ended
	closed  bool // a close frame has come, behind which there are no messages (§5.5.1)
}

// next takes a byte of a head. complete is that head, valid until the next call, or nil
// where more of it has to come. ok is false for a head that this end may not send.
func (f *frameReader) next(c byte) (complete []byte, ok bool) {
	f.head = append(f.head, c)
	h := f.head
	switch {
	case len(h) == 1:
		return nil, f.first(c)
	case len(h) == 2 && !f.second(c):
		return nil, false
	case len(h) < f.size():
		return nil, true
	}
	if !f.length() {
		return nil, false
	}
	f.mask = [4]byte{}
	if f.fromClient {
		copy(f.mask[:], h[len(h)-len(f.mask):])
	}
	f.head = h[:0]
	return h, true
}

// first reports whether a frame of this kind may stand here (§5.2, §5.4, §5.5).
func (f *frameReader) first(c byte) bool {
	f.last, f.control = c&frameLast != 0, false
	if c&frameReserved != 0 {
		return false
	}
	switch c & frameKind {
	case kindContinued:
		return f.begins(f.open)
	case kindText, kindBinary:
		return f.begins(!f.open)
	case kindClose, kindPing, kindPong:
		f.control = true
		f.closed = f.closed || c&frameKind == kindClose
		return f.last
	}
	return false
}

// begins begins a frame of a message where it may stand there.
func (f *frameReader) begins(allowed bool) bool {
	f.open = !f.last
	return allowed && !f.closed
}

func (f *frameReader) second(c byte) bool {
	short := c & frameLength
	if f.control && (short > controlMost || f.head[0]&frameKind == kindClose && short == 1) {
		return false
	}
	return (c&frameMasked != 0) == f.fromClient
}

// size is the length of the head, whose first two bytes have come.
func (f *frameReader) size() int {
	size := 2
	switch f.head[1] & frameLength {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if f.fromClient {
		size += len(f.mask)
	}
	return size
}

// length reads how long the payload is. It reports false where that is more than 63
// bits, or written in more bytes than needed (§5.2).
func (f *frameReader) length() bool {
	switch short := f.head[1] & frameLength; short {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.head[2:]))
		return f.left > 125
	case 127:
		f.left = binary.BigEndian.Uint64(f.head[2:])
		return f.left > 0xffff && f.left>>63 == 0
	default:
		f.left = uint64(short)
		return true
	}
}
