package proxy

import (
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/relay"
)

// switching is the status 101 (RFC 9110 §15.2.2).
const switching = 101

var upgradeFields = http1.Fields{{Name: "Connection", Value: "Upgrade"}, {Name: "Upgrade", Value: "websocket"}}

// asksWebSocket reports whether a request opens a WebSocket (RFC 6455 §4.1).
// Other protocols cannot be switched to: their Upgrade goes no further.
func asksWebSocket(req *http1.Request, body http1.Framing) bool {
	f := req.Fields
	return req.Method == "GET" && req.Minor == 1 && body.Kind == http1.BodyNone &&
		f.HasToken("Connection", "Upgrade") && onlyWebSocket(f) && len(f.Values(webSocketKey)) == 1
}

const (
	webSocketKey  = "Sec-WebSocket-Key"
	webSocketGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455 §1.3
)

// switchesToWebSocket reports whether a response agrees to the WebSocket that req opens: it
// says so of that one, as what merely repeats fields, or a status that it is told, cannot.
func switchesToWebSocket(req *http1.Request, resp *http1.Response) bool {
	accepts := resp.Fields.Values("Sec-WebSocket-Accept")
	sum := sha1.Sum([]byte(strings.TrimSpace(req.Fields.Get(webSocketKey)) + webSocketGUID))
	return resp.Fields.HasToken("Connection", "Upgrade") && onlyWebSocket(resp.Fields) &&
		len(accepts) == 1 && strings.TrimSpace(accepts[0]) == base64.StdEncoding.EncodeToString(sum[:])
}

// agrees reports whether a response may make a WebSocket of x: it agrees to the one that
// was asked for, and to no extensions unless some were (RFC 6455 §4.1). Those that were
// taken out of the request would have the messages come so that they cannot be searched.
func (x *exchange) acceptsWebSocket(resp *http1.Response) bool {
	const extensions = "Sec-WebSocket-Extensions"
	return x.upgrade && switchesToWebSocket(&x.req, resp) &&
		(len(x.fields.Values(extensions)) > 0 || strings.Join(resp.Fields.Values(extensions), "") == "")
}

func onlyWebSocket(f http1.Fields) bool {
	values := f.Values("Upgrade")
	return len(values) == 1 && strings.EqualFold(strings.TrimSpace(values[0]), "websocket")
}

// switchProtocols passes the upstream's consent on, and then the bytes of the
// WebSocket both ways until one side ends.
func (v *h1Conn) switchProtocols(x *exchange, resp *http1.Response) error {
	x.keep = false
	fields, err := http1.StripHopByHop(resp.Fields)
	if err != nil {
		return errUpstream
	}
	v.out = http1.AppendResponse(v.out[:0], switching, statusText(switching), append(x.responseFields(fields), upgradeFields...))
	v.deadline(v.server.limits.Idle)
	n, err := v.conn.Write(v.out)
	x.addDown(int64(n))
	if err == nil {
		v.carry(x)
	}
	v.dropUpstream()
	if err != nil {
		return unanswerable{err}
	}
	return nil
}

// carry lets a WebSocket be for as long as a tunnel may. One inside a tunnel
// ends with that.
func (v *h1Conn) carry(x *exchange) {
	if v.tunnel != nil {
		v.both(x)
		x.end.Outcome = v.tunnel.Outcome(x.end.Outcome)
		return
	}
	tooOld := time.AfterFunc(v.server.limits.Lifetime, func() { v.windDown(errTooOld) })
	v.both(x)
	if !tooOld.Stop() {
		x.end.Outcome = string(relay.TooOld)
	}
}

var errTooOld = errors.New("the WebSocket has lasted as long as it may")

// both carries bytes both ways. A side that ends has its end passed on; a
// moment later the other is ended as well, since a WebSocket has no half.
func (v *h1Conn) both(x *exchange) {
	up := make(chan error)
	var sent int64
	go func() {
		var err error
		if sent, err = v.pump(v.up.conn, v.in, &bodyFilter{scanner: newMessageScanner(x.flow, v.scanTurn(x))}, x.allowUp); refusalIn(err) != nil {
			abort(v.up.conn)
		}
		halfClose(v.up.conn)
		v.windDown(err)
		up <- err
	}()
	n, err := v.pump(v.conn, v.up.in, x.messageFilter(), x.countDown)
	x.end.Down += n
	if over := refusalIn(err); over != nil {
		x.end.Outcome = string(over.Decision.Class)
	}
	halfClose(v.conn)
	v.windDown(err)
	if over := refusalIn(<-up); over != nil {
		x.end.Outcome = string(over.Decision.Class)
	}
	x.end.Up += sent
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closeTimer.Stop()
	v.ended = true
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
	v.stopped = true // from here on no deadline is extended
	if v.closeTimer == nil {
		v.closeTimer = time.AfterFunc(time.Until(until), v.cancel)
	}
	if failed != nil {
		v.cancel()
	}
	v.conn.SetDeadline(until)
	v.up.conn.SetDeadline(until)
}

// pump carries bytes one way until from ends, each part as soon as it is there and
// passes has let it.
func (v *h1Conn) pump(to io.Writer, from io.Reader, filter *bodyFilter, passes func(n int) error) (total int64, err error) {
	buf := v.server.buffers.Get().(*[bodyBuffer]byte)
	defer v.server.buffers.Put(buf)
	for {
		n, err := from.Read(buf[:])
		if n > 0 {
			v.extend()
		}
		part := filter.redact(buf[:n])
		if err != nil {
			part = filter.redactLast(part)
		}
		part, over := filter.scan(part, err != nil)
		if over != nil {
			return total, over
		}
		if len(part) > 0 {
			if err := passes(len(part)); err != nil {
				return total, err
			}
			if _, err := to.Write(part); err != nil {
				return total, err
			}
			filter.sent()
			total += int64(len(part))
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

func halfClose(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
}
