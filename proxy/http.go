package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/policy"
)

// A webVisit is one client that speaks plain HTTP, for as many requests as it
// likes. Every request is decided on its own; only the connection to an
// upstream may be used again, by the next request that goes to the same place.
type webVisit struct {
	*hosted
	in  *bufio.Reader
	out []byte // scratch for heads
	up  upstream

	mu      sync.Mutex // guards deadlines while a body is sent and a response received at once
	stopped bool       // the rest of the request's body is not wanted
}

// upstream is the far end of the last request.
type upstream struct {
	conn net.Conn
	in   *bufio.Reader
	kept *egress.Kept // while no request uses it
}

// serveHTTP serves requests until the client or a refusal ends it.
func (s *Server) serveHTTP(h *hosted) {
	v := &webVisit{hosted: h, in: s.readers.borrow(h, s.heads.Bytes)}
	defer s.readers.giveBack(v.in)
	defer v.forget()
	for v.serve() {
	}
}

// forget closes what is kept for a next request.
func (v *webVisit) forget() {
	v.up.kept.Close()
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
	dst     policy.Destination
	flow    *egress.Flow
	upload  *upload // of a request with a body
	reused  bool
	keep    bool // the client's connection, afterwards
	end     egress.End
}

// serve serves one request and reports whether another may follow.
func (v *webVisit) serve() bool {
	v.deadline(v.server.limits.Head)
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
	x.flow, err = v.server.Gate.Open(context.Background(), v.peer, v.request(x))
	if err != nil {
		v.refuse(asRefusal(err), x)
		return false
	}
	if err := v.exchange(x); err != nil {
		v.failed(x, err)
		return false
	}
	v.finish(x)
	return x.keep
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
	time.Sleep(v.server.penalty(v.peer, r))
	v.lastWord(httpReply(r, readerOf(x.req.Fields)))
}

// understand fills x in from its head.
func (v *webVisit) understand(x *exchange) (err error) {
	req := &x.req
	if req.Method == "CONNECT" {
		return errLateConnect
	}
	if x.target, err = http1.ParseTarget(req.Method, req.Target); err != nil {
		return err
	}
	if x.dst, err = v.destination(x); err != nil {
		return err
	}
	if v.within == nil {
		if v.peer.User, v.peer.Password, v.peer.HasCredentials, err = credentials(req.Fields); err != nil {
			return err
		}
	}
	if x.body, err = req.Body(); err != nil {
		return err
	}
	fields, err := http1.StripHopByHop(slices.Clone(req.Fields))
	if err != nil {
		return err
	}
	x.fields = http1.StripClientIdentity(fields)
	x.expects, err = req.ExpectsContinue()
	x.keep = req.Persistent()
	return err
}

// destination is the authority of the target; a Host field beside it is
// replaced by it (RFC 9112 §3.2.2), so the two cannot disagree further on.
// Within a tunnel, both have to be what the tunnel was opened to.
func (v *webVisit) destination(x *exchange) (policy.Destination, error) {
	host := x.req.Fields.Get("Host")
	if x.target.Form == http1.Absolute {
		return v.absolute(x, host)
	}
	if v.within == nil {
		return policy.Destination{}, errOriginForm
	}
	named, err := parseAuthority(host)
	if err != nil {
		return policy.Destination{}, err
	}
	if named.Host != v.within.Host {
		return policy.Destination{}, errOtherHost
	}
	return policy.Destination{Host: v.within.Host, Addr: v.within.Addr, Port: v.within.Port}, nil
}

func (v *webVisit) absolute(x *exchange, host string) (policy.Destination, error) {
	dst, err := parseAuthority(x.target.Authority)
	switch {
	case err != nil:
	case host != "" && !isHost(host):
		err = errHostList
	case v.within != nil && !samePlace(dst, *v.within):
		err = errOtherHost
	}
	return dst, err
}

// parseAuthority reads host[:port], with port 80 where none is given.
func parseAuthority(s string) (policy.Destination, error) {
	if _, _, err := policy.ParseHost(s); err == nil {
		return policy.ParseDestination(s + ":80")
	}
	return policy.ParseDestination(s)
}

func samePlace(a, b policy.Destination) bool { return a.Host == b.Host && a.Port == b.Port }

func (v *webVisit) request(x *exchange) policy.Request {
	return policy.Request{
		Via:         v.via,
		Destination: x.dst,
		Protocol:    policy.ProtocolHTTP,
		HTTP:        &policy.HTTPRequest{Method: x.req.Method, Path: x.target.Path, Query: x.target.Query, BodySize: x.body.Length},
	}
}

// finish closes the flow and keeps its connection where that is safe.
func (v *webVisit) finish(x *exchange) {
	if v.up.in != nil && v.up.in.Buffered() == 0 {
		v.up.kept = x.flow.Keep()
	}
	x.end.Outcome = "closed"
	x.flow.Close(x.end)
	if v.up.kept == nil {
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
		x.flow.Close(x.end)
		abort(v.client)
		return
	case errors.As(err, &refusal):
	case errors.As(err, &bad) && bad.Status != 0:
		x.end.Outcome = string(policy.MalformedRequest)
		x.flow.Close(x.end)
		v.malformed(nil, bad)
		return
	default:
		refusal = x.flow.Failed(policy.NetworkTLS)
	}
	x.end.Outcome = string(refusal.Decision.Class)
	x.flow.Close(x.end)
	v.lastWord(httpReply(refusal, readerOf(x.req.Fields)))
}
