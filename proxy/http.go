package proxy

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
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// A webVisit is one client that speaks HTTP/1, in clear or inside an inspected
// tunnel, for as many requests as it likes. Every request is decided on its
// own; only the connection to an upstream may be used again, by the next
// request that goes to the same place.
type webVisit struct {
	*hosted
	inside *inside // the inspected tunnel that it takes place in, or nil
	in     *bufio.Reader
	out    []byte // scratch for heads
	up     upstream
	served int
	abrupt bool // the last response was ended by a connection that ended without a word

	wanted   context.Context // until what the client sends is not
	unwanted context.CancelFunc

	mu      sync.Mutex  // guards deadlines while a body is sent and a response received at once
	stopped bool        // the rest of the request's body is not wanted
	moment  *time.Timer // that a WebSocket has left, once one side of it has ended
	over    bool        // it has ended, and its connections are its own no longer
}

// upstream is the far end of the last request.
type upstream struct {
	conn net.Conn
	in   *bufio.Reader
	kept *egress.Kept // while no request uses it
}

// serveHTTP serves requests in clear until the client or a refusal ends it.
func (s *Server) serveHTTP(h *hosted) { s.serveH1(h, nil, nil) }

// serveH1 serves requests. i and far are an inspected tunnel and its TLS with the upstream, or
// nil; far is also nil where the handshake with the upstream failed.
func (s *Server) serveH1(h *hosted, i *inside, far *tls.Conn) {
	v := &webVisit{hosted: h, inside: i, in: s.readers.borrow(h, s.heads.Bytes)}
	v.wanted, v.unwanted = context.WithCancel(context.Background())
	defer v.unwanted()
	if far != nil {
		v.up = upstream{conn: far, in: s.readers.borrow(far, s.heads.Bytes)}
	}
	defer s.readers.giveBack(v.in)
	defer v.forget()
	for v.serve() {
	}
	if i != nil && !v.abrupt {
		halfClose(v.client) // or a body that ends with its connection could have been cut short
	}
}

// search is the turns of what an exchange sends.
func (v *webVisit) search(x *exchange) search { return v.server.search(v.wanted, x.flow) }

// forget closes what is kept for a next request.
func (v *webVisit) forget() {
	v.up.kept.Close()
	if v.inside != nil && v.up.conn != nil {
		v.up.conn.Close()
	}
	if v.up.in != nil {
		v.server.readers.giveBack(v.up.in)
	}
	v.up = upstream{}
}

// An exchange is one request and its response.
type exchange struct {
	req     http1.Request
	fields  http1.Fields // of req, without those that end here
	target  http1.Target
	body    http1.Framing
	expects bool
	upgrade bool // it asks for a WebSocket
	dst     policy.Destination
	claims  string // the server that it names, where the connection leads to another one
	flow    *egress.Flow
	upload  *upload           // of a request with a body
	redact  *secret.Redaction // of the response, or nil
	meter   *relay.Meter      // of the sandbox
	payload int64             // that was let up, beside heads; for the goroutine that sends it
	reused  bool
	keep    bool // the client's connection, afterwards
	end     egress.End
}

// serve serves one request and reports whether another may follow.
func (v *webVisit) serve() bool {
	if !v.awaitRequest() {
		return false
	}
	req, err := http1.ReadRequest(v.in, v.server.heads)
	if err != nil {
		v.unread(err)
		return false
	}
	x := &exchange{req: req}
	if err := v.understand(x); err != nil {
		v.malformed(http1.AppendRequest(nil, req.Method, req.Target, nil), err)
		return false
	}
	if v.inside != nil && v.inside.broken != nil {
		v.refuse(v.inside.broken, x)
		return false
	}
	x.flow, err = v.open(x)
	v.deadline(v.server.limits.Head) // a person may have been waited for
	if err != nil {
		v.refuse(asRefusal(err), x)
		return false
	}
	if v.inside == nil && !v.server.open.prove(&v.place, x.flow.Sandbox()) {
		x.flow.Close(egress.End{Outcome: string(policy.TooManyFlows)})
		v.refuse(v.server.refuseOneMore(v.peer), x)
		return false
	}
	x.meter = x.flow.Meter()
	if err := v.exchange(x); err != nil {
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
func (v *webVisit) awaitRequest() bool {
	if v.inside != nil && v.served > 0 {
		v.deadline(v.server.limits.Idle)
		if _, err := v.in.Peek(1); err != nil {
			return false
		}
	}
	v.deadline(v.server.limits.Head)
	return true
}

// open has the request decided: by the gate, or within the tunnel's own flow.
func (v *webVisit) open(x *exchange) (*egress.Flow, error) {
	r := v.request(x)
	there := v.present()
	defer there.release()
	if v.inside == nil {
		return v.server.Gate.Open(there, v.peer, r)
	}
	flow, err := v.inside.flow.Request(there, r.HTTP)
	if err == nil {
		flow.OnCut(v.inside.cut) // its connections carry nothing else
	}
	return flow, err
}

// unread ends a client whose request could not be read.
func (v *webVisit) unread(err error) {
	raw, _ := v.in.Peek(v.in.Buffered())
	switch {
	case len(raw) == 0:
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errHeadLate
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = errHeadCut
	}
	v.malformed(raw, err)
}

func (v *webVisit) malformed(raw []byte, err error) {
	refusal := refuseMalformed(v.server.Gate, v.peer, v.via, raw, err)
	v.lastWord(malformedReply(refusal, err))
}

// refuse answers a refusal; one for wrong credentials has to wait.
func (v *webVisit) refuse(r *egress.Refusal, x *exchange) {
	v.server.pause(v.server.penalty(v.peer, r))
	v.answerRefusal(r, v.answerTo(r.Decision.Class), x)
}

// answerRefusal sends a refusal, to HEAD without its body (RFC 9110 §9.3.2).
func (v *webVisit) answerRefusal(r *egress.Refusal, a answer, x *exchange) {
	reply := httpReplyAs(r, a, readerOf(x.req.Fields))
	if x.req.Method == "HEAD" {
		reply = reply[:bytes.Index(reply, endOfHead)+len(endOfHead)]
	}
	v.lastWord(reply)
}

var endOfHead = []byte("\r\n\r\n")

func (v *webVisit) answerTo(class policy.Class) answer {
	if v.inside != nil || v.within != nil || v.captured != nil {
		return answerInside(class)
	}
	return answerTo(class)
}

// understand fills x in from its head.
func (v *webVisit) understand(x *exchange) (err error) {
	req := &x.req
	switch {
	case req.Method == "CONNECT" && v.inside != nil:
		return errInnerConnect
	case req.Method == "CONNECT":
		return errLateConnect
	}
	if x.target, err = http1.ParseTarget(req.Method, req.Target); err != nil {
		return err
	}
	if x.dst, err = v.destination(x); err != nil {
		return err
	}
	if v.within == nil && v.captured == nil {
		if v.peer.User, v.peer.Password, v.peer.HasCredentials, err = credentials(req.Fields); err != nil {
			return err
		}
	}
	if x.body, err = req.Body(); err != nil {
		return err
	}
	x.upgrade = asksWebSocket(req, x.body)
	fields, err := http1.StripHopByHop(slices.Clone(req.Fields))
	if err != nil {
		return err
	}
	x.fields = http1.StripClaims(fields)
	x.expects, err = req.ExpectsContinue()
	x.keep = req.Persistent()
	return err
}

// destination is the authority of the target. A Host field beside it is replaced by it (RFC
// 9112 §3.2.2), and so cannot name another server further on. A tunnel and a captured address
// lead to one server: a request that names another one gets that server in x.claims.
func (v *webVisit) destination(x *exchange) (policy.Destination, error) {
	host := x.req.Fields.Get("Host")
	whole := x.target.Form == http1.Absolute
	switch {
	case v.inside != nil && whole:
		return policy.Destination{}, errOtherHost
	case v.inside != nil:
		return v.inside.dst, nil // the policy compares it with the Host field
	case v.captured != nil && !whole && host == "":
		return *v.captured, nil
	case v.captured == nil && v.within == nil && !whole:
		return policy.Destination{}, errOriginForm
	case whole && host != "" && !isHost(host):
		return policy.Destination{}, errHostList
	}
	named, err := v.named(x.target.Authority, whole, host)
	if err != nil {
		return policy.Destination{}, err
	}
	to := cmp.Or(v.within, v.captured)
	if to == nil || v.leads(named, whole) {
		return named, nil
	}
	x.claims = named.String()
	return policy.Destination{Host: to.Host, Addr: to.Addr, Port: to.Port}, nil
}

// named is the server that a request names, in its target or in its Host field. Such a field
// has the port of the connection where it says none.
func (v *webVisit) named(target string, whole bool, host string) (policy.Destination, error) {
	if whole {
		return parseAuthority(target)
	}
	named, err := parseAuthority(host)
	if _, _, bare := policy.ParseHost(host); bare == nil {
		named.Port = cmp.Or(v.within, v.captured).Port
	}
	return named, err
}

// leads reports whether the tunnel, or the captured connection, leads to the server that a
// request names. A Host field in a tunnel may have any port.
func (v *webVisit) leads(named policy.Destination, whole bool) bool {
	switch {
	case v.within != nil:
		return named.Host == v.within.Host && (named.Port == v.within.Port || !whole)
	case named.Port != v.captured.Port:
		return false
	}
	return whole || !named.Addr.IsValid() || named.Addr == v.captured.Addr
}

// parseAuthority reads host[:port], with port 80 where none is given.
func parseAuthority(s string) (policy.Destination, error) {
	if _, _, err := policy.ParseHost(s); err == nil {
		return policy.ParseDestination(s + ":80")
	}
	return policy.ParseDestination(s)
}

func (v *webVisit) request(x *exchange) policy.Request {
	head := &policy.HTTPRequest{
		Method: x.req.Method, Path: x.target.Path, Query: x.target.Query, Header: headerOf(x.appendFields(nil)),
		BodySize: x.body.Length, Upgrade: x.upgrade,
	}
	head.Authority = x.claims
	if v.inside != nil {
		head.Authority = authority(x.req.Fields.Get("Host"))
	}
	return policy.Request{Via: v.via, Destination: x.dst, Protocol: policy.ProtocolHTTP, HTTP: head}
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

// finish closes the flow and keeps its connection where that is safe.
func (v *webVisit) finish(x *exchange) {
	quiet := v.up.in != nil && v.up.in.Buffered() == 0
	if quiet && v.inside == nil {
		v.up.kept = x.flow.Keep()
	}
	if x.end.Outcome == "" {
		x.end.Outcome = "closed"
	}
	x.flow.Close(x.end)
	if !quiet || v.inside == nil && v.up.kept == nil {
		v.forget()
	}
}

// A spoilt exchange cannot be answered any more: part of a response is out.
type spoilt struct{ error }

// failed ends an exchange that did not come about.
func (v *webVisit) failed(x *exchange, err error) {
	defer v.forget()
	var bad *http1.MalformedError
	var refusal *egress.Refusal
	var late spoilt
	switch {
	case errors.As(err, &late):
		if errors.As(late.error, &bad) { // it is too late to answer, not to record
			refuseMalformed(v.server.Gate, v.peer, v.via, nil, bad)
		}
		x.end.Outcome = "reset"
		if over := refusalIn(late.error); over != nil {
			x.end.Outcome = string(over.Decision.Class)
		}
		x.flow.Close(x.end)
		abort(v.client)
		return
	case errors.As(err, &refusal):
	case errors.As(err, &bad) && bad.Status != 0:
		x.end.Outcome = string(policy.MalformedRequest)
		x.flow.Close(x.end)
		v.malformed(nil, bad)
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		refusal = x.flow.Failed(policy.NetworkTimeout, "")
	case v.inside != nil && v.inside.asked.Load():
		refusal = x.flow.Failed(policy.NetworkTLS, wantsCertificate)
	default:
		refusal = x.flow.Failed(policy.NetworkTLS, "")
	}
	x.end.Outcome = string(refusal.Decision.Class)
	x.flow.Close(x.end)
	v.answerRefusal(refusal, answerTo(refusal.Decision.Class), x)
}
