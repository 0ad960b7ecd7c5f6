package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/proxy/answer"
)

const asProxy = "the destination is used as a proxy; if egressd is to connect through it, write it under upstream.proxy in the policy file, and have programs use egressd alone"

// ErrProxyInside is a request inside a tunnel in the form that proxies take.
var ErrProxyInside = &http1.MalformedError{Problem: "a whole URL as the target inside a tunnel: " + asProxy, Status: 400}

// ErrInnerConnect is a CONNECT inside an inspected tunnel.
var ErrInnerConnect = &http1.MalformedError{Problem: "a CONNECT inside a tunnel: " + asProxy, Status: 405}

var (
	errLateConnect = errors.New("CONNECT has to be the first request of its connection")
	errUpstream    = errors.New("the upstream answered what is no response")
)

// Reach implements [Ends]. It connects with what the last exchange kept, if it may.
func (x *h1Exchange) Reach(reuse bool) error {
	v := x.conn
	if x.hangup == nil {
		v.Deadline(v.Forwarder.Limits.Head) // a person may have been waited for
		x.hangup = x.watch()
	}
	if x.unwatch != nil {
		x.unwatch()
	}
	if v.tunnel != nil {
		return x.reachInside(reuse)
	}
	kept := v.up.kept
	v.up.kept = nil
	tunnels := x.Upgrade && v.up.by != nil // what is upgraded needs a tunnel through an upstream proxy
	if x.reused = reuse && !tunnels && x.Flow.Reuse(kept); x.reused {
		return nil
	}
	kept.Close()
	v.closeUpstream()
	conn, by, err := x.dial()
	if err != nil {
		return err
	}
	v.up = h1Upstream{conn: conn, by: by, in: v.Forwarder.readers.borrow(orderly{conn}, v.Forwarder.Heads.Bytes)}
	return nil
}

func (x *h1Exchange) dial() (net.Conn, *egress.Forwarding, error) {
	if x.Upgrade {
		conn, err := x.Flow.Dial(x.Context)
		return conn, nil, err
	}
	return x.Flow.DialHTTP(x.Context)
}

// reachInside keeps to the connection of the tunnel while it stands.
func (x *h1Exchange) reachInside(reuse bool) error {
	v := x.conn
	if reuse && v.up.conn != nil && v.up.quiet() {
		x.reused = v.used || v.served > 0
		return nil
	}
	v.closeUpstream()
	v.used, v.owned = false, false
	conn, err := v.tunnel.Redial(x.Context, x.Flow)
	if err != nil {
		return err
	}
	x.reused = false
	v.up = h1Upstream{conn: conn, in: v.Forwarder.readers.borrow(orderly{conn}, v.Forwarder.Heads.Bytes)}
	return nil
}

// Send implements [Ends]. The body goes up beside the response.
func (x *h1Exchange) Send() (*http1.Response, error) {
	v := x.conn
	up := v.up.conn
	x.unwatch = context.AfterFunc(x.Context, func() { Abort(up) })
	if err := x.sendHead(); err != nil {
		return nil, x.broken(err)
	}
	if x.upload != nil {
		v.extend() // the deadline was for the head
		if !x.expects {
			x.upload.begin()
		}
		x.sending = true
		go x.upload.run(x)
	}
	resp, err := x.readResponse()
	if err != nil {
		return nil, err
	}
	if err := x.refusedUpstream(&resp); err != nil {
		return nil, err
	}
	if x.framing, err = resp.Body(x.Method); err != nil {
		return nil, x.unreadable(err)
	}
	v.owned = v.owned || resp.Status < 200 || resp.Status >= 400
	x.upstreamKeeps = resp.Persistent() && x.framing.Kind != http1.BodyUntilClose && !x.framing.Faulty
	x.changesTo = strings.Join(resp.Fields.Values("Upgrade"), ", ")
	return &http1.Response{Status: resp.Status, Fields: resp.Framed(x.Method, x.framing)}, nil
}

// sendHead writes the request anew, for the destination that was decided.
func (x *h1Exchange) sendHead() error {
	v := x.conn
	host := HostField(x.Destination, v.defaultPort())
	out := x.AppendFields(http1.Fields{{Name: "Host", Value: host}})
	target := x.Target.RequestURI()
	if by := v.up.by; by != nil {
		target = absolute(host, target)
		out = append(out.Delete("Max-Forwards"), by.Fields()...) // with 0, a TRACE would bring back what the proxy was sent
	}
	v.owned = v.owned || !x.mayLeave() || authenticates(out.Get("Authorization"))
	v.out = http1.AppendRequest(v.out[:0], x.Method, target, out)
	if err := x.SpendHead(len(v.out)); err != nil {
		return err
	}
	v.up.conn.SetDeadline(time.Now().Add(v.Forwarder.Limits.Idle))
	_, err := v.up.conn.Write(v.out)
	return err
}

// absolute is the target of a request for a proxy (RFC 9112 sections 3.2.2 and 3.2.4).
func absolute(host, target string) string {
	if target == "*" {
		target = ""
	}
	return "http://" + host + target
}

// defaultPort is the port that a Host field leaves out.
func (v *h1Conn) defaultPort() uint16 {
	if v.tunnel != nil {
		return 443
	}
	return 80
}

// mayLeave reports whether another tunnel may use the upstream connection after a request. A server that answers a body
// or an expectation twice, the second time late, must not answer somebody else.
func (x *h1Exchange) mayLeave() bool {
	return (x.Method == "GET" || x.Method == "HEAD") && x.upload == nil && !x.Upgrade
}

// authenticates reports whether the scheme authenticates the connection instead of a request, as only NTLM and Negotiate
// do (RFC 4559 section 6).
func authenticates(field string) bool {
	scheme, _, _ := strings.Cut(field, " ")
	return strings.EqualFold(scheme, "NTLM") || strings.EqualFold(scheme, "Negotiate")
}

// broken tells a kept connection that had ended from one that failed, or whose
// upstream is silent.
func (x *h1Exchange) broken(err error) error {
	if x.reused && !errors.Is(err, os.ErrDeadlineExceeded) && x.body.Length <= 0 && x.body.Kind != http1.BodyChunked && Idempotent(x.Method) {
		return ErrStale
	}
	return errors.Join(errUpstream, err)
}

// readResponse reads the final response, and passes interim ones on.
func (x *h1Exchange) readResponse() (http1.Response, error) {
	v := x.conn
	limits := v.Forwarder.Responses
	limits.Grow = x.growHead
	for {
		if _, err := v.up.in.Peek(1); err != nil {
			return http1.Response{}, x.broken(err)
		}
		resp, err := http1.ReadResponse(v.up.in, limits)
		switch {
		case err != nil:
			return resp, x.unreadable(err)
		case resp.Status == http.StatusSwitchingProtocols && !x.accepts(&resp):
			return resp, x.Malformed("it switches to a protocol that was not asked for")
		case resp.Status == http.StatusSwitchingProtocols && x.upload.forgo():
			return resp, x.Malformed("it switches to another protocol before it has asked for the request's body") // RFC 9110 section 7.8
		case resp.Status >= 200 || resp.Status == http.StatusSwitchingProtocols:
			x.upload.forgo()
			return resp, nil
		}
		if resp.Status == http.StatusContinue {
			x.upload.begin()
		}
		if err := x.interim(&resp); err != nil {
			return resp, err
		}
	}
}

// interim passes an interim response on, to clients that know of them.
func (x *h1Exchange) interim(resp *http1.Response) error {
	v := x.conn
	fields, err := x.Interim(resp.Framed(x.Method, http1.Framing{}))
	if err != nil || x.req.Minor == 0 {
		return err
	}
	v.out = http1.AppendResponse(v.out[:0], resp.Status, answer.StatusText(resp.Status), fields)
	v.extend()
	n, err := v.Conn.Write(v.out)
	x.CountDown(n)
	if err != nil {
		return unanswerable{err}
	}
	return nil
}

// growHead asks for the memory of a head that is longer than a reader's buffer. It is free again when the exchange ends.
func (x *h1Exchange) growHead(n int) bool {
	if x.headMemory == nil {
		x.headMemory = x.conn.Forwarder.BodyMemory.Reserve(x.Flow.Holder(), x.Flow.Sandbox())
	}
	return x.headMemory.Grow(int64(n))
}

// unreadable returns the refusal for a response that cannot be read, or an error of the connection as errUpstream.
func (x *h1Exchange) unreadable(err error) error {
	var bad *http1.MalformedError
	switch {
	case !errors.As(err, &bad):
		return errors.Join(errUpstream, err)
	case !bad.Large:
		return x.Malformed(bad.Problem)
	case bad.Field != "":
		return x.Malformed(bad.Problem + ", most of them in " + bad.Field + responseLimits)
	}
	return x.Malformed(bad.Problem + responseLimits)
}

const responseLimits = " (limits.response_head_bytes, limits.response_fields)"

// refusedUpstream returns the refusal to show if an upstream proxy itself answered a request that it was to pass
// on, or nil. A server that claims to be one only refuses its own response.
func (x *h1Exchange) refusedUpstream(resp *http1.Response) error {
	v := x.conn
	if v.up.by == nil {
		return nil
	}
	own := resp.Status == http.StatusProxyAuthRequired || resp.Fields.Get("X-Squid-Error") != "" ||
		resp.Status >= 400 && strings.Contains(resp.Fields.Get("Proxy-Status"), "error=")
	if !own {
		return nil
	}
	return x.Flow.RefusedUpstream(resp.Status, resp.Reason)
}

// Answer implements [Ends].
func (x *h1Exchange) Answer(r *http1.Response) error {
	v := x.conn
	if r.Status == http.StatusSwitchingProtocols {
		return x.switchProtocols(r)
	}
	if !x.upload.complete(5 * time.Millisecond) {
		x.keep = false
	}
	rechunk := x.framing.Kind == http1.BodyChunked || x.framing.Kind == http1.BodyUntilClose
	if rechunk && x.req.Minor == 0 {
		x.keep, rechunk = false, false
	}
	out := r.Fields
	if rechunk {
		out = append(out, http1.Field{Name: "Transfer-Encoding", Value: "chunked"})
	}
	if !x.keep {
		out = append(out, http1.Field{Name: "Connection", Value: "close"})
	}
	v.out = http1.AppendResponse(v.out[:0], r.Status, answer.StatusText(r.Status), out)
	v.Deadline(v.Forwarder.Limits.Idle)
	if err := x.answer(v.out, x.framing, rechunk); err != nil {
		return err
	}
	if !x.upstreamKeeps {
		v.dropUpstream()
	}
	return nil
}

// answer sends the head and the body to the client. Buffered bytes of the body go out in one write with the
// head.
func (x *h1Exchange) answer(head []byte, framing http1.Framing, rechunk bool) error {
	v := x.conn
	whole := framing.Kind == http1.BodyLength && framing.Length <= int64(v.up.in.Buffered())
	if whole && !x.filters() {
		body, _ := v.up.in.Peek(int(framing.Length))
		v.out = append(head, body...)
		v.up.in.Discard(len(body))
		n, err := v.Conn.Write(v.out)
		x.CountDown(n)
		return err
	}
	n, err := v.Conn.Write(head)
	x.CountDown(n)
	if err != nil || framing.Kind == http1.BodyNone {
		return err
	}
	body := http1.NewBodyReader(v.up.in, framing, v.Forwarder.Responses)
	return v.copyBody(v.Conn, x.Download(body, v.extend), rechunk, x.CountDown, func() http1.Fields { return x.Passing(body.Trailer) })
}

// dropUpstream has Settle keep no connection that the upstream ends.
func (v *h1Conn) dropUpstream() {
	v.Forwarder.readers.giveBack(v.up.in)
	v.up.in = nil
}

// Settle implements [Ends].
func (x *h1Exchange) Settle(err error) error {
	err = x.join(err)
	if x.unwatch != nil {
		x.unwatch()
	}
	x.hangup.End()
	if err == nil {
		x.keepUpstream()
	}
	return err
}

// join waits for the upload, or ends it.
func (x *h1Exchange) join(err error) error {
	if !x.sending {
		return err
	}
	moment := time.Duration(0)
	if err != nil {
		moment = 50 * time.Millisecond // it may be the upload that broke the connection off
	}
	if !x.upload.doneWithin(moment) {
		// The upstream has answered before it had the whole body: what is left
		// of it has nowhere to go.
		x.keep = false
		x.conn.stopUpload()
		<-x.upload.done
		return overBudget(err, x.upload.err)
	}
	return Together(err, x.upload.err)
}

// keepUpstream keeps the connection for a next exchange where that is safe.
func (x *h1Exchange) keepUpstream() {
	v := x.conn
	quiet := v.up.in != nil && v.up.in.Buffered() == 0
	v.whole = x.upload.complete(0)
	if quiet && v.tunnel == nil {
		v.up.kept = x.Flow.Keep(nil)
	}
	x.spent = !quiet || v.tunnel == nil && v.up.kept == nil
}

// Reply implements [Ends]. To HEAD it has no body (RFC 9110 §9.3.2).
func (x *h1Exchange) Reply(r answer.Reply) {
	if x.Method == http.MethodHead {
		r.Body = nil
	}
	WriteLast(x.conn.Conn, r.HTTP1(), LastMoment)
}

// Abort implements [Ends].
func (x *h1Exchange) Abort() { Abort(x.conn.Conn) }

// quiet reports whether the upstream has sent nothing since its last response, not even an end. Bytes that an
// upstream sends unasked must not become the answer to the next request. TLS records without application data,
// such as new session tickets, do not count.
func (u *h1Upstream) quiet() bool {
	secure, ok := u.conn.(*tls.Conn)
	if !ok || u.in.Buffered() > 0 {
		return false
	}
	below, ok := secure.NetConn().(*UpstreamConn)
	if !ok {
		return false
	}
	u.conn.SetReadDeadline(time.Time{})
	below.noWait = true
	defer func() { below.noWait = false }()
	_, err := u.in.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// orderly reads from an upstream. An attacker on the network path can end TLS without close_notify, so a body is
// not complete then. Nor is it after a reset whose error an earlier write returned.
type orderly struct{ net.Conn }

func (o orderly) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	var cut bool
	if secure, ok := o.Conn.(*tls.Conn); ok {
		below, ok := secure.NetConn().(*UpstreamConn)
		cut = ok && below.closed
	} else {
		_, cut = carry.State(o.Conn)
	}
	if cut {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
