package forward

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// An h1Conn is one client connection that speaks HTTP/1, in clear or in an inspected tunnel. The policy
// decides each request. An upstream connection is kept for the client's next request, and used again if that
// request has the same destination.
type h1Conn struct {
	*Client
	tunnel InspectedTunnel // nil in clear
	in     *bufio.Reader
	out    []byte // scratch for heads
	up     h1Upstream
	served int
	used   bool // the upstream connection of the tunnel has carried requests of another one
	owned  bool // the upstream connection is for no other tunnel, see mayLeave
	whole  bool // the last request went up to its last byte, and its response is read

	ctx    context.Context // until what the client sends is not
	cancel context.CancelFunc

	mu         sync.Mutex  // guards deadlines while a body is sent and a response received at once
	stopped    bool        // the rest of the request's body is not wanted
	closeTimer *time.Timer // that a WebSocket has left, once one side of it has ended
	ended      bool        // it has ended, and its connections are its own no longer
}

// An InspectedTunnel is one in which a client speaks HTTP/1. Its errors are of type
// [*egress.Refusal].
type InspectedTunnel interface {
	// Broken returns the refusal of every request if the upstream could not be reached, or nil.
	Broken() *egress.Refusal
	Destination() policy.Destination
	// Request has a request decided within the tunnel's flow.
	Request(context.Context, *policy.HTTPRequest) (*egress.Flow, error)
	// Redial connects to the upstream again, for a request.
	Redial(ctx context.Context, request *egress.Flow) (net.Conn, error)
	// Secrets returns what adds credentials to the tunnel's requests.
	Secrets() *Secrets
	// WhyBroken returns the likely reason for which an upstream broke a connection off, or "".
	WhyBroken() string
	// Keep takes the TLS with the upstream for a later tunnel, and reports false if that may not have it.
	Keep(upstream net.Conn) bool
	// Outcome returns the outcome with which the tunnel was cut, or else byItself.
	Outcome(byItself string) string
}

// An h1Upstream is the connection of the last request.
type h1Upstream struct {
	conn net.Conn
	in   *bufio.Reader
	by   *egress.Forwarding // of requests that an upstream proxy takes whole, or nil
	kept *egress.Kept       // while no request uses it
}

// ServeH1 serves requests in clear until the client or a refusal ends the connection.
func (h *Client) ServeH1() { h.ServeInside(nil, nil, false) }

// ServeInside serves the requests in an inspected tunnel. upstream is the tunnel's TLS with its upstream; it
// is nil if that handshake failed. used says that another tunnel has left it.
func (h *Client) ServeInside(t InspectedTunnel, upstream *tls.Conn, used bool) {
	v := &h1Conn{Client: h, tunnel: t, used: used, in: h.Forwarder.readers.borrow(h, h.Forwarder.Heads.Bytes)}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	defer v.cancel()
	if upstream != nil {
		v.up = h1Upstream{conn: upstream, in: h.Forwarder.readers.borrow(orderly{upstream}, h.Forwarder.Heads.Bytes)}
	}
	defer h.Forwarder.readers.giveBack(v.in)
	defer v.closeUpstream()
	for v.serve() {
	}
	if t != nil && v.up.conn != nil && v.whole && !v.owned && v.up.quiet() && t.Keep(v.up.conn) {
		v.up.conn = nil
	}
	if t != nil {
		halfClose(v.Conn)
	}
}

// scanTurn is the turns of what an exchange sends.
func (v *h1Conn) scanTurn(x *exchange) scanTurn { return v.Forwarder.ScanTurn(v.ctx, x.flow) }

// closeUpstream closes what is kept for a next request.
func (v *h1Conn) closeUpstream() {
	v.up.kept.Close()
	if v.tunnel != nil && v.up.conn != nil {
		v.up.conn.Close()
	}
	if v.up.in != nil {
		v.Forwarder.readers.giveBack(v.up.in)
	}
	v.up = h1Upstream{}
}

// An exchange is one request and its response.
type exchange struct {
	req        http1.Request
	fields     http1.Fields // of req, without those that end here
	target     http1.Target
	body       http1.Framing
	expects    bool   // 100 (Continue) before its body
	protocols  string // that it asks to change to, or ""
	webSocket  bool   // it asks for a WebSocket alone
	dst        policy.Destination
	named      string // the server that it names, where the connection leads to another one
	flow       *egress.Flow
	ctx        context.Context // until the exchange is over or its client has left
	leave      context.CancelCauseFunc
	hangup     *hangup           // ended before somebody else reads from the client
	upload     *upload           // of a request with a body
	redaction  *secret.Redaction // of the response, or nil
	headMemory *Reservation      // of a long head of a response, or nil
	meter      *carry.Meter      // of the sandbox
	payload    int64             // that was let up, beside heads; for the goroutine that sends it
	reused     bool
	keep       bool // the client's connection, afterwards
	end        egress.End
}

// serve serves one request and reports whether another may follow.
func (v *h1Conn) serve() bool {
	if !v.awaitRequest() {
		return false
	}
	req, err := http1.ReadRequest(v.in, v.Forwarder.Heads)
	if err != nil {
		v.unreadable(err)
		return false
	}
	x := &exchange{req: req}
	if err := v.understand(x); err != nil {
		v.malformed(http1.AppendRequest(nil, req.Method, req.Target, nil), err)
		return false
	}
	if v.tunnel != nil {
		if refusal := v.tunnel.Broken(); refusal != nil {
			v.refuse(refusal, x)
			return false
		}
	}
	if v.isInquiry(x) {
		v.inquire(x)
		return false
	}
	x.flow, err = v.open(x)
	v.Deadline(v.Forwarder.Limits.Head) // a person may have been waited for
	if err != nil {
		v.refuse(AsRefusal(err), x)
		return false
	}
	if v.tunnel == nil {
		if refusal := v.Assign(x.flow.Holder(), x.flow.Sandbox()); refusal != nil {
			x.flow.Close(egress.End{Outcome: string(policy.TooManyFlows)})
			v.refuse(refusal, x)
			return false
		}
	}
	x.meter = x.flow.Meter()
	defer func() { x.headMemory.Release() }()
	x.ctx, x.leave = context.WithCancelCause(v.ctx)
	defer x.leave(nil)
	if x.body.Kind == http1.BodyChunked || x.body.Length > 0 {
		x.upload = &upload{done: make(chan struct{}), wanted: make(chan struct{})}
	}
	x.hangup = v.watch(x)
	err = v.exchange(x)
	x.hangup.end()
	if err != nil {
		v.failed(x, err)
		return false
	}
	v.finish(x)
	v.served++
	return x.keep
}

// awaitRequest waits for the first byte of a request and gives its head the
// time that heads have. Inside a tunnel, clients keep connections for later as
// they do with any server.
func (v *h1Conn) awaitRequest() bool {
	if v.tunnel != nil && v.served > 0 {
		v.Deadline(v.Forwarder.Limits.Idle)
		if _, err := v.in.Peek(1); err != nil {
			return false
		}
	}
	v.Deadline(v.Forwarder.Limits.Head)
	return true
}

// open has the request decided: by the gate, or within the tunnel's own flow.
func (v *h1Conn) open(x *exchange) (*egress.Flow, error) {
	r := v.request(x)
	ctx := v.Context()
	defer ctx.Release()
	if v.tunnel == nil {
		return v.Forwarder.Gate.Open(ctx, v.Peer, r)
	}
	return v.tunnel.Request(ctx, r.HTTP)
}

// unreadable ends a client whose request could not be read.
func (v *h1Conn) unreadable(err error) {
	raw, _ := v.in.Peek(v.in.Buffered())
	switch {
	case len(raw) == 0:
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = ErrHeadLate
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = ErrHeadCut
	}
	v.malformed(raw, err)
}

func (v *h1Conn) malformed(raw []byte, err error) {
	refusal := RefuseMalformed(v.Forwarder.Gate, v.Peer, v.Via, raw, err)
	v.writeLast(MalformedReply(refusal, err))
}

// refuse answers a refusal; one for wrong credentials has to wait.
func (v *h1Conn) refuse(r *egress.Refusal, x *exchange) {
	v.Forwarder.Pause(v.Forwarder.Penalty(v.Peer, r))
	v.answerRefusal(r, v.answerTo(r.Decision.Class), x)
}

// answerRefusal sends a refusal, to HEAD without its body (RFC 9110 §9.3.2).
func (v *h1Conn) answerRefusal(r *egress.Refusal, a Answer, x *exchange) {
	reply := HTTPReplyAs(r, a, RecipientOf(x.req.Fields))
	if x.req.Method == "HEAD" {
		reply = reply[:bytes.Index(reply, endOfHead)+len(endOfHead)]
	}
	v.writeLast(reply)
}

var endOfHead = []byte("\r\n\r\n")

func (v *h1Conn) answerTo(class policy.Class) Answer {
	if v.tunnel != nil || v.TunnelTo != nil || v.CapturedTo != nil {
		return TunnelAnswer(class)
	}
	return AnswerTo(class)
}

// understand fills x in from its head.
func (v *h1Conn) understand(x *exchange) (err error) {
	req := &x.req
	switch {
	case req.Method == "CONNECT" && (v.tunnel != nil || v.TunnelTo != nil || v.CapturedTo != nil):
		return ErrInnerConnect
	case req.Method == "CONNECT":
		return errLateConnect
	}
	if err := v.addressed(x); err != nil {
		return err
	}
	if x.body, err = req.Body(); err != nil {
		return err
	}
	if x.protocols, err = protocolsOf(req); err != nil {
		return err
	}
	x.webSocket = asksWebSocket(req, x.body, x.protocols)
	fields, err := http1.StripHopByHop(slices.Clone(req.Fields))
	if err != nil {
		return err
	}
	x.fields = http1.StripClaims(fields)
	x.expects, err = req.ExpectsContinue()
	x.expects = x.expects && (x.body.Kind == http1.BodyChunked || x.body.Length > 0)
	x.keep = req.Persistent()
	return err
}

// claimed is the server that a request names, on a connection to an address or to that server itself.
func claimed(named policy.Destination, to *policy.Destination) policy.Destination {
	if to.Addr.IsValid() && !named.Addr.IsValid() {
		named.Port, named.Asked = to.Port, to.Addr
	}
	return named
}

// goesByName reports whether a request in a tunnel that was opened to an address goes to the host that it names: the
// policy has to mention that host.
func (v *h1Conn) goesByName(named policy.Destination, whole bool) bool {
	to := v.TunnelTo
	if to == nil || !to.Addr.IsValid() || named.Addr.IsValid() || whole && named.Port != to.Port {
		return false
	}
	return v.Forwarder.Gate.Outlook.Mentions(v.ctx, v.Peer, policy.Request{Via: v.Via, Destination: claimed(named, to)})
}

// byHost is the destination of a request to a proxy. For an address that no part of the policy mentions,
// the Host field names the destination. RFC 9112 §3.2.2 has a proxy ignore the field, but then the request would be refused.
func (v *h1Conn) byHost(x *exchange) policy.Destination {
	host := x.req.Fields.Get("Host")
	if v.tunnel != nil || v.TunnelTo != nil || v.CapturedTo != nil || !x.dst.Addr.IsValid() || host == "" {
		return x.dst
	}
	named, err := parseAuthority(host)
	if _, _, bare := policy.ParseHost(host); bare == nil {
		named.Port = x.dst.Port
	}
	if err != nil || named.Addr.IsValid() || named.Port != x.dst.Port {
		return x.dst
	}
	if !v.Forwarder.Gate.Outlook.AwaitsName(v.ctx, v.Peer, policy.Request{Via: v.Via, Destination: x.dst}) {
		return x.dst
	}
	return claimed(named, &x.dst)
}

// named is the server that a request names, in its target or in its Host field. Such a field
// has the port of the connection where it says none.
func (v *h1Conn) named(target string, whole bool, host string) (policy.Destination, error) {
	if whole {
		return parseAuthority(target)
	}
	named, err := parseAuthority(host)
	if _, _, bare := policy.ParseHost(host); bare == nil {
		named.Port = cmp.Or(v.TunnelTo, v.CapturedTo).Port
	}
	if to := v.TunnelTo; to != nil && !named.Addr.IsValid() && !strings.Contains(named.Host, ".") && strings.HasPrefix(to.Host, named.Host+".") {
		named.Host = to.Host // by the search list; the request is written with the whole name
	}
	return named, err
}

// leadsTo reports whether the tunnel, or the captured connection, leads to the server that a
// request names. A Host field in a tunnel may have any port.
func (v *h1Conn) leadsTo(named policy.Destination, whole bool) bool {
	switch {
	case v.TunnelTo != nil:
		return named.Host == v.TunnelTo.Host && (named.Port == v.TunnelTo.Port || !whole)
	case named.Port != v.CapturedTo.Port:
		return false
	}
	return whole || !named.Addr.IsValid() || named.Addr == v.CapturedTo.Addr
}

// parseAuthority reads host[:port], with port 80 where none is given.
func parseAuthority(s string) (policy.Destination, error) {
	if _, _, err := policy.ParseHost(s); err == nil {
		return policy.ParseDestination(s + ":80")
	}
	return policy.ParseDestination(s)
}

func (v *h1Conn) request(x *exchange) policy.Request {
	head := &policy.HTTPRequest{
		Method: x.req.Method, Path: x.target.Path, Query: x.target.Query, Header: HeaderOf(x.appendFields(nil)),
		BodySize: x.body.Length, Upgrade: x.protocols != "", OtherProtocol: x.protocols != "" && !x.webSocket,
	}
	head.Authority = x.named
	if v.tunnel != nil {
		head.Authority = Authority(x.req.Fields.Get("Host"))
	}
	return policy.Request{Via: v.Via, Destination: x.dst, Protocol: policy.ProtocolHTTP, HTTP: head}
}

// HeaderOf is what a policy sees of the fields that go up. Host is none of it: it is
// judged as the destination.
func HeaderOf(fields http1.Fields) map[string][]string {
	header := make(map[string][]string, len(fields))
	for _, f := range fields {
		if name := strings.ToLower(f.Name); name != "host" {
			header[name] = append(header[name], f.Value)
		}
	}
	return header
}

// finish closes the flow and keeps its connection where that is safe.
func (v *h1Conn) finish(x *exchange) {
	quiet := v.up.in != nil && v.up.in.Buffered() == 0
	v.whole = x.upload.complete(0)
	if quiet && v.tunnel == nil {
		v.up.kept = x.flow.Keep(nil)
	}
	if x.end.Outcome == "" {
		x.end.Outcome = "closed"
	}
	x.flow.Close(x.end)
	if !quiet || v.tunnel == nil && v.up.kept == nil {
		v.closeUpstream()
	}
}

// An unanswerable exchange cannot be answered any more: part of a response is out.
type unanswerable struct{ error }

func (e unanswerable) Unwrap() error { return e.error }

// left reports whether an exchange failed because its client went away: it has reset its connection, or left in the
// middle of its request.
func (v *h1Conn) left(x *exchange, err error) bool {
	var cut incompleteUpload
	if errors.As(err, &cut) || errors.Is(context.Cause(x.ctx), errClientLeft) {
		return true
	}
	var late unanswerable
	_, gone := socketEnd(v.Raw)
	return gone && errors.As(err, &late) && refusalIn(err) == nil
}

// failed ends an exchange that did not come about.
func (v *h1Conn) failed(x *exchange, err error) {
	defer v.closeUpstream()
	var bad *http1.MalformedError
	var refusal *egress.Refusal
	var late unanswerable
	switch {
	case v.left(x, err):
		x.end.Outcome = ClientLeft
		if v.tunnel != nil {
			x.end.Outcome = v.tunnel.Outcome(ClientLeft)
		}
		x.flow.Close(x.end)
		Abort(v.Conn)
		return
	case errors.As(err, &late):
		if errors.As(late.error, &bad) { // it is too late to answer, not to record
			RefuseMalformed(v.Forwarder.Gate, v.Peer, v.Via, nil, bad)
		}
		x.end.Outcome = "reset"
		if over := refusalIn(late.error); over != nil {
			x.end.Outcome, x.end.Note = string(over.Decision.Class), cmp.Or(over.Note, x.end.Note)
		}
		x.flow.Close(x.end)
		Abort(v.Conn)
		return
	case errors.As(err, &refusal):
	case errors.As(err, &bad) && bad.Status != 0:
		x.end.Outcome = string(policy.MalformedRequest)
		x.flow.Close(x.end)
		v.malformed(nil, bad)
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		refusal = x.flow.Failed(policy.NetworkTimeout, "")
	default:
		why := ""
		if v.tunnel != nil {
			why = v.tunnel.WhyBroken()
		}
		refusal = x.flow.Failed(policy.NetworkTLS, why)
	}
	x.end.Outcome, x.end.Note = string(refusal.Decision.Class), refusal.Note
	x.flow.Close(x.end)
	v.answerRefusal(refusal, AnswerTo(refusal.Decision.Class), x)
}

// Authority is what a request inside the tunnel names as its server, for the
// policy to compare: canonical, or what no destination equals.
func Authority(host string) string {
	dst, err := policy.ParseDestination(host)
	if err != nil {
		dst, err = policy.ParseDestination(host + ":443")
	}
	if err != nil {
		return noAuthority
	}
	return dst.String()
}

const noAuthority = "-"
