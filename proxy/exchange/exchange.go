package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

const asProxy = "the destination is used as a proxy; if egressd is to connect through it, write it under upstream.proxy in the policy file, and have programs use egressd alone"

// ErrProxyInside is a request inside a tunnel in the form that proxies take.
var ErrProxyInside = &http1.MalformedError{Problem: "a whole URL as the target inside a tunnel: " + asProxy, Status: 400}

var (
	errLateConnect = errors.New("CONNECT has to be the first request of its connection")
	errUpstream    = errors.New("the upstream answered what is no response")
	errStale       = errors.New("the kept connection was closed by the upstream")
)

// ErrInnerConnect is a CONNECT inside an inspected tunnel.
var ErrInnerConnect = &http1.MalformedError{Problem: "a CONNECT inside a tunnel: " + asProxy, Status: 405}

// exchange sends the request and passes the response on. Nothing is sent
// before the record of the request is durable.
func (v *h1Conn) exchange(x *exchange) error {
	if err := v.addCredential(x); err != nil {
		return err
	}
	if x.webSocket && x.flow.HasCanaries() {
		x.fields = x.fields.Delete("Sec-WebSocket-Extensions") // what is compressed cannot be searched
	}
	if err := v.reach(x, true); err != nil {
		return err
	}
	if err := x.flow.Wait(x.ctx); err != nil {
		return err
	}
	err := v.roundTrip(x)
	if errors.Is(err, errStale) && x.ctx.Err() == nil {
		v.closeUpstream()
		if err := v.reach(x, false); err != nil {
			return err
		}
		err = v.roundTrip(x)
	}
	return err
}

// reach connects the flow, with what the last one kept if it may.
func (v *h1Conn) reach(x *exchange, reuse bool) error {
	if v.tunnel != nil {
		return v.reachInside(x, reuse)
	}
	kept := v.up.kept
	v.up.kept = nil
	tunnels := x.protocols != "" && v.up.by != nil // what is upgraded needs a tunnel through an upstream proxy
	if x.reused = reuse && !tunnels && x.flow.Reuse(kept); x.reused {
		return nil
	}
	kept.Close()
	v.closeUpstream()
	conn, by, err := dial(x)
	if err != nil {
		return err
	}
	v.up = h1Upstream{conn: conn, by: by, in: v.Forwarder.readers.borrow(orderly{conn}, v.Forwarder.Heads.Bytes)}
	return nil
}

func dial(x *exchange) (net.Conn, *egress.Forwarding, error) {
	if x.protocols != "" {
		conn, err := x.flow.Dial(x.ctx)
		return conn, nil, err
	}
	return x.flow.DialHTTP(x.ctx)
}

// reachInside keeps to the connection of the tunnel while it stands.
func (v *h1Conn) reachInside(x *exchange, reuse bool) error {
	if reuse && v.up.conn != nil && v.up.quiet() {
		x.reused = v.used || v.served > 0
		return nil
	}
	v.closeUpstream()
	v.used, v.owned = false, false
	conn, err := v.tunnel.Redial(x.ctx, x.flow)
	if err != nil {
		return err
	}
	x.reused = false
	v.up = h1Upstream{conn: conn, in: v.Forwarder.readers.borrow(orderly{conn}, v.Forwarder.Heads.Bytes)}
	return nil
}

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

// orderly reads from an upstream. Anybody on the network path can end TLS without close_notify, so that end is no end
// of a body. Neither is a reset, of which a write has had the error before.
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
		_, cut = socketEnd(o.Conn)
	}
	if cut {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (v *h1Conn) roundTrip(x *exchange) error {
	up := v.up.conn
	defer context.AfterFunc(x.ctx, func() { Abort(up) })()
	if err := v.sendHead(x); err != nil {
		return v.broken(x, err)
	}
	if x.upload == nil {
		return v.receive(x)
	}
	v.extend() // the deadline was for the head
	if !x.expects {
		x.upload.begin()
	}
	go x.upload.run(v, x)
	err := v.receive(x)
	moment := time.Duration(0)
	if err != nil {
		moment = 50 * time.Millisecond // it may be the upload that broke the connection off
	}
	if !x.upload.doneWithin(moment) {
		// The upstream has answered before it had the whole body: what is left
		// of it has nowhere to go.
		x.keep = false
		v.stopUpload()
		<-x.upload.done
		return overBudget(err, x.upload.err)
	}
	return bodyError(err, x.upload.err)
}

// broken tells a kept connection that had ended from one that failed, or whose
// upstream is silent.
func (v *h1Conn) broken(x *exchange, err error) error {
	if x.reused && !errors.Is(err, os.ErrDeadlineExceeded) && x.body.Length <= 0 && x.body.Kind != http1.BodyChunked && Idempotent(x.req.Method) {
		return errStale
	}
	return errors.Join(errUpstream, err)
}

func Idempotent(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "PUT", "DELETE":
		return true
	}
	return false
}

// sendHead writes the request anew, for the destination that was decided.
func (v *h1Conn) sendHead(x *exchange) error {
	host := HostField(x.dst, v.defaultPort())
	out := x.appendFields(http1.Fields{{Name: "Host", Value: host}})
	target := x.target.RequestURI()
	if by := v.up.by; by != nil {
		target = absolute(host, target)
		out = append(out.Delete("Max-Forwards"), by.Fields()...) // with 0, a TRACE would bring back what the proxy was sent
	}
	v.owned = v.owned || !x.mayLeave() || authenticates(out.Get("Authorization"))
	v.out = http1.AppendRequest(v.out[:0], x.req.Method, target, out)
	v.up.conn.SetDeadline(time.Now().Add(v.Forwarder.Limits.Idle))
	n, err := v.up.conn.Write(v.out)
	x.end.Up += int64(n)
	x.meter.Up.Add(int64(n))
	return err
}

// absolute is the target of a request for a proxy (RFC 9112 sections 3.2.2 and 3.2.4).
func absolute(host, target string) string {
	if target == "*" {
		target = ""
	}
	return "http://" + host + target
}

// refusedUpstream returns the refusal to show if an upstream proxy itself answered a request that it was to pass
// on, or nil. A server that claims to be one only refuses its own response.
func (v *h1Conn) refusedUpstream(x *exchange, resp *http1.Response) error {
	if v.up.by == nil {
		return nil
	}
	own := resp.Status == http.StatusProxyAuthRequired || resp.Fields.Get("X-Squid-Error") != "" ||
		resp.Status >= 400 && strings.Contains(resp.Fields.Get("Proxy-Status"), "error=")
	if !own {
		return nil
	}
	return x.flow.RefusedUpstream(resp.Status, resp.Reason)
}

// appendFields appends the request's fields as they go up, which are those that a
// policy is shown.
func (x *exchange) appendFields(out http1.Fields) http1.Fields {
	for _, f := range x.fields {
		if !dropped(f.Name) {
			out = append(out, f)
		}
	}
	if x.body.Kind == http1.BodyChunked {
		out = append(out, http1.Field{Name: "Transfer-Encoding", Value: "chunked"})
	}
	if x.expects {
		out = append(out, http1.Field{Name: "Expect", Value: "100-continue"})
	}
	if x.protocols != "" {
		out = append(out, upgradeFields(x.protocols)...)
	}
	return out
}

// dropped names the request fields that are written anew or not at all.
func dropped(name string) bool {
	return strings.EqualFold(name, "Host") || strings.EqualFold(name, "Expect")
}

// defaultPort is the port that a Host field leaves out.
func (v *h1Conn) defaultPort() uint16 {
	if v.tunnel != nil {
		return 443
	}
	return 80
}

func HostField(d policy.Destination, defaultPort uint16) string {
	if d.Port == defaultPort {
		if d.Addr.Is6() {
			return "[" + d.Host + "]"
		}
		return d.Host
	}
	return d.String()
}

// receive passes the response on, head and body.
func (v *h1Conn) receive(x *exchange) error {
	resp, err := v.readResponse(x)
	if err != nil {
		return err
	}
	if err := v.refusedUpstream(x, &resp); err != nil {
		return err
	}
	framing, err := resp.Body(x.req.Method)
	if err != nil {
		return x.unreadable(err)
	}
	x.end.Status = resp.Status
	v.owned = v.owned || resp.Status < 200 || resp.Status >= 400
	if resp.Status == http.StatusSwitchingProtocols {
		return v.switchProtocols(x, &resp)
	}
	if err := x.redactable(resp.Fields); err != nil {
		return err
	}
	if !x.upload.complete(5 * time.Millisecond) {
		x.keep = false
	}
	upstreamKeeps := resp.Persistent() && framing.Kind != http1.BodyUntilClose && !framing.Faulty
	rechunk := framing.Kind == http1.BodyChunked || framing.Kind == http1.BodyUntilClose
	if rechunk && x.req.Minor == 0 {
		x.keep = false
	}
	head := v.responseHead(x, &resp, framing, rechunk && x.req.Minor == 1)
	v.Deadline(v.Forwarder.Limits.Idle)
	if err := v.answer(x, head, framing, rechunk && x.req.Minor == 1); err != nil {
		return unanswerable{x.unreadableBody(err)}
	}
	if !upstreamKeeps {
		v.dropUpstream()
	}
	return nil
}

// mayLeave reports whether another tunnel may use the upstream connection after a request. A server that answers a body
// or an expectation twice, the second time late, must not answer somebody else.
func (x *exchange) mayLeave() bool {
	return (x.req.Method == "GET" || x.req.Method == "HEAD") && x.upload == nil && x.protocols == ""
}

// authenticates reports whether the scheme authenticates the connection instead of a request, as only NTLM and Negotiate
// do (RFC 4559 section 6).
func authenticates(field string) bool {
	scheme, _, _ := strings.Cut(field, " ")
	return strings.EqualFold(scheme, "NTLM") || strings.EqualFold(scheme, "Negotiate")
}

// dropUpstream keeps finish from keeping a connection that the upstream ends.
func (v *h1Conn) dropUpstream() {
	v.Forwarder.readers.giveBack(v.up.in)
	v.up.in = nil
}

// readResponse reads the final response, and passes interim ones on (RFC 9110 section 15.2).
func (v *h1Conn) readResponse(x *exchange) (http1.Response, error) {
	limits := v.Forwarder.Responses
	limits.Grow = x.growHead(v.Forwarder)
	for range InterimMost {
		if _, err := v.up.in.Peek(1); err != nil {
			return http1.Response{}, v.broken(x, err)
		}
		resp, err := http1.ReadResponse(v.up.in, limits)
		switch {
		case err != nil:
			return resp, x.unreadable(err)
		case resp.Status == http.StatusSwitchingProtocols && !x.accepts(&resp):
			return resp, x.malformed("it switches to a protocol that was not asked for")
		case resp.Status >= 200 || resp.Status == http.StatusSwitchingProtocols:
			return resp, nil
		}
		if resp.Status == http.StatusContinue {
			x.upload.begin()
		}
		if err := v.interim(x, &resp); err != nil {
			return resp, unanswerable{err}
		}
	}
	return http1.Response{}, x.malformed(fmt.Sprintf("more than %d interim responses", InterimMost))
}

// interim passes an interim response on, to clients that know of them.
func (v *h1Conn) interim(x *exchange, resp *http1.Response) error {
	if x.req.Minor == 0 {
		return nil
	}
	fields := x.responseFields(http1.StripResponseHops(resp.Framed(x.req.Method, http1.Framing{})))
	v.out = http1.AppendResponse(v.out[:0], resp.Status, statusText(resp.Status), fields)
	v.extend()
	n, err := v.Conn.Write(v.out)
	x.addDown(int64(n))
	return err
}

// growHead returns what asks for the memory of a head that is longer than a reader's buffer. It is free again when the
// exchange ends.
func (x *exchange) growHead(f *Forwarder) func(n int) bool {
	return func(n int) bool {
		if x.headMemory == nil {
			x.headMemory = f.BodyMemory.Reserve(x.flow.Holder(), x.flow.Sandbox())
		}
		return x.headMemory.grow(int64(n))
	}
}

// unreadable returns the refusal for a response that cannot be read, or an error of the connection as errUpstream.
func (x *exchange) unreadable(err error) error {
	var bad *http1.MalformedError
	switch {
	case !errors.As(err, &bad):
		return errors.Join(errUpstream, err)
	case !bad.Large:
		return x.malformed(bad.Problem)
	case bad.Field != "":
		return x.malformed(bad.Problem + ", most of them in " + bad.Field + responseLimits)
	}
	return x.malformed(bad.Problem + responseLimits)
}

const responseLimits = " (limits.response_head_bytes, limits.response_fields)"

// malformed returns the refusal for a response that is none, or too large.
func (x *exchange) malformed(problem string) *egress.Refusal {
	return MalformedResponse(x.flow, problem)
}

// MalformedResponse returns the refusal for a response to the request of flow.
func MalformedResponse(flow *egress.Flow, problem string) *egress.Refusal {
	r := flow.Failed(policy.MalformedResponse, "the response cannot be passed on: "+problem)
	r.Note = r.Decision.Reason
	return r
}

// unreadableBody tells a response whose body is malformed from one that ended too early, or whose client left.
func (x *exchange) unreadableBody(err error) error {
	var cut incompleteBody
	var bad *http1.MalformedError
	if errors.As(err, &cut) && errors.As(cut.error, &bad) {
		return x.malformed(bad.Problem)
	}
	return err
}

// responseHead writes the head anew. The reason phrase and the fields by
// which egressd speaks for itself cannot come from an upstream.
func (v *h1Conn) responseHead(x *exchange, resp *http1.Response, framing http1.Framing, chunked bool) []byte {
	out := x.responseFields(http1.StripResponseHops(resp.Framed(x.req.Method, framing)))
	if chunked {
		out = append(out, http1.Field{Name: "Transfer-Encoding", Value: "chunked"})
	}
	if !x.keep {
		out = append(out, http1.Field{Name: "Connection", Value: "close"})
	}
	v.out = http1.AppendResponse(v.out[:0], resp.Status, statusText(resp.Status), out)
	return v.out
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

// answer sends the head and the body to the client. Buffered bytes of the body go out in one write with the
// head.
func (v *h1Conn) answer(x *exchange, head []byte, framing http1.Framing, rechunk bool) error {
	whole := framing.Kind == http1.BodyLength && framing.Length <= int64(v.up.in.Buffered())
	if whole && x.redaction == nil {
		body, _ := v.up.in.Peek(int(framing.Length))
		v.out = append(head, body...)
		v.up.in.Discard(len(body))
		n, err := v.Conn.Write(v.out)
		x.addDown(int64(n))
		return err
	}
	n, err := v.Conn.Write(head)
	x.addDown(int64(n))
	if err != nil || framing.Kind == http1.BodyNone {
		return err
	}
	if framing.Kind == http1.BodyLength && v.tunnel == nil && x.redaction == nil {
		return v.answerLength(x, framing.Length)
	}
	body := http1.NewBodyReader(v.up.in, framing, v.Forwarder.Responses)
	down, err := v.copyBody(v.Conn, body, rechunk, x.responseFilter(), x.countDown)
	x.end.Down += down
	return err
}

// InterimMost is how many interim responses one request may have.
const InterimMost = 32
