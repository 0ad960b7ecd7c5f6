package exchange

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
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
	clientEnd  bool        // in another protocol, the client sends no more
	serverEnd  bool        // nor the upstream
	closeTimer *time.Timer // that a WebSocket has left, once one side of it has ended
	ended      bool        // the other protocol has ended, and its connections are its own no longer
	failed     error       // what ended it; nil: its sides, in order
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
// is nil if that handshake failed. used says that another tunnel has left it. ServeInside returns what a later tunnel may
// have of the TLS with the upstream, or nil.
func (h *Client) ServeInside(t InspectedTunnel, upstream *tls.Conn, used bool) (left net.Conn) {
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
	if t == nil {
		return nil
	}
	if v.up.conn != nil && v.whole && !v.owned && v.up.quiet() {
		left, v.up.conn = v.up.conn, nil
	}
	halfClose(v.Conn)
	return left
}

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

// An h1Exchange is an exchange with a client and an upstream that speak HTTP/1. It implements [Ends].
type h1Exchange struct {
	*Exchange
	conn      *h1Conn
	req       http1.Request
	body      http1.Framing // of the request
	expects   bool          // 100 (Continue) before its body
	protocols string        // that it asks to change to, or ""
	hangup    *ClientWatch  // ended before somebody else reads from the client; nil before Reach
	upload    *upload       // of a request with a body
	sending   bool          // upload runs
	unwatch   func() bool   // ends the watch that breaks the upstream off when nobody wants it any more; nil before Send

	reused        bool
	framing       http1.Framing // of the response
	changesTo     string        // protocols that the response names
	upstreamKeeps bool          // the connection, behind the response
	keep          bool          // the client's connection, afterwards
	spent         bool          // the upstream's connection takes no other request
}

// serve serves one request and reports whether another may follow.
func (v *h1Conn) serve() bool {
	if !v.awaitRequest() {
		return false
	}
	x := &h1Exchange{Exchange: &Exchange{Client: v.Client, Tunnel: v.tunnel}, conn: v}
	x.Ends = x
	if v.tunnel != nil {
		x.OnCut = v.tunnel.Cut // its connections carry nothing else
	}
	x.Context, x.Leave = context.WithCancelCause(v.ctx)
	defer x.Leave(nil)
	var err error
	if x.req, err = http1.ReadRequest(v.in, v.Forwarder.Heads); err != nil {
		v.unreadable(x, err)
		return false
	}
	if err := x.understand(); err != nil {
		x.Misread(http1.AppendRequest(nil, x.req.Method, x.req.Target, nil), err)
		return false
	}
	if v.isInquiry(x) {
		v.inquire(x)
		return false
	}
	whole := x.Do()
	if x.Flow != nil && (!whole || x.spent) {
		v.closeUpstream()
	}
	if whole {
		v.served++
	}
	if whole && !x.keep && x.end.Status != http.StatusSwitchingProtocols { // the client may still send what nobody reads
		WriteLast(v.Conn, nil, LastMoment)
	}
	return whole && x.keep
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

// unreadable ends a client whose request could not be read.
func (v *h1Conn) unreadable(x *h1Exchange, err error) {
	raw, _ := v.in.Peek(v.in.Buffered())
	switch {
	case len(raw) == 0:
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = ErrHeadLate
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = ErrHeadCut
	}
	x.Misread(raw, err)
}

// understand fills x in from its head.
func (x *h1Exchange) understand() (err error) {
	v := x.conn
	req := &x.req
	x.Method, x.Recipient = req.Method, answer.RecipientOf(req.Fields)
	switch {
	case req.Method == "CONNECT" && (v.tunnel != nil || v.TunnelTo != nil || v.CapturedTo != nil):
		return ErrInnerConnect
	case req.Method == "CONNECT":
		return errLateConnect
	}
	if err := x.addressed(); err != nil {
		return err
	}
	if x.body, err = req.Body(); err != nil {
		return err
	}
	x.Length = x.body.Length
	if x.protocols, err = protocolsOf(req); err != nil {
		return err
	}
	x.Upgrade, x.WebSocket = x.protocols != "", asksWebSocket(req, x.body, x.protocols)
	fields, err := http1.StripHopByHop(slices.Clone(req.Fields))
	if err != nil {
		return err
	}
	x.Fields, x.ReplacesMethod = http1.StripClaims(fields)
	hasBody := x.body.Kind == http1.BodyChunked || x.body.Length > 0
	if x.expects, err = req.ExpectsContinue(); err != nil {
		return err
	}
	x.expects = x.expects && hasBody
	if hasBody {
		x.Body, x.BeforeBody = http1.NewBodyReader(v.in, x.body, v.Forwarder.Heads), x.beforeBody
		x.upload = &upload{done: make(chan struct{}), wanted: make(chan struct{})}
	}
	x.keep = req.Persistent()
	x.Hops = x.hops()
	return nil
}

// beforeBody gives the client time to send some of its body. A client that waits for 100 (Continue) gets it now: its head is
// allowed.
func (x *h1Exchange) beforeBody() {
	v := x.conn
	if x.expects {
		x.expects = false
		x.Hops = x.hops()
		v.Conn.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")) // an error shows when the body is read
	}
	v.Deadline(v.Forwarder.Limits.Idle)
}

// hops are the fields that go up for this connection alone.
func (x *h1Exchange) hops() (out http1.Fields) {
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

// claimed is the server that a request names, on a connection to an address or to that server itself. The connection decides
// the port, as everywhere else.
func claimed(named policy.Destination, to *policy.Destination) policy.Destination {
	named.Port = to.Port
	if to.Addr.IsValid() && !named.Addr.IsValid() {
		named.Asked = to.Addr
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
func (x *h1Exchange) byHost() policy.Destination {
	v := x.conn
	host := x.req.Fields.Get("Host")
	if v.tunnel != nil || v.TunnelTo != nil || v.CapturedTo != nil || !x.Destination.Addr.IsValid() || host == "" {
		return x.Destination
	}
	named, err := parseAuthority(host)
	if _, _, bare := policy.ParseHost(host); bare == nil {
		named.Port = x.Destination.Port
	}
	if err != nil || named.Addr.IsValid() || named.Port != x.Destination.Port {
		return x.Destination
	}
	if !v.Forwarder.Gate.Outlook.AwaitsName(v.ctx, v.Peer, policy.Request{Via: v.Via, Destination: x.Destination}) {
		return x.Destination
	}
	return claimed(named, &x.Destination)
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

// headerOf is what a policy sees of the fields that go up. Host is none of it: it is
// judged as the destination.
func headerOf(fields http1.Fields) map[string][]string {
	header := make(map[string][]string, len(fields))
	for _, f := range fields {
		if name := strings.ToLower(f.Name); name != "host" {
			header[name] = append(header[name], f.Value)
		}
	}
	return header
}

// An unanswerable exchange cannot be answered any more: part of a response is out.
type unanswerable struct{ error }

func (e unanswerable) Unwrap() error { return e.error }

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
