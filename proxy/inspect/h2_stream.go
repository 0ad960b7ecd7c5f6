package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
)

// A stream is one request, from its head to the end of its response.
type stream struct {
	client     context.Context // ends when the client resets the stream, or its connection ends
	flow       *egress.Flow
	target     http1.Target
	fields     http1.Fields
	redaction  *secret.Redaction // of its response, or nil
	writer     *streamWriter
	window     *exchange.Reservation // of the connection that it goes over, or nil
	bodyMemory *exchange.Reservation // of its body, or nil
	scanned    *exchange.ScannedBody // its body where it is searched, or nil
	held       *exchange.HeldBody    // what a rule has read of its body, or nil
	headBytes  int64                 // bytes of its head, as HTTP/1 would have them
	bodyBytes  atomic.Int64          // bytes of its body
	end        egress.End

	exceeded   atomic.Bool // its body was more than may go up, or held what may not
	bodyFailed atomic.Bool // reading its body failed, see declaredBody
}

// streamKey finds the stream in the context of its request.
type streamKey struct{}

// ServeHTTP implements [http.Handler].
func (v *h2Conn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !v.enter() {
		return
	}
	defer v.running.Done()
	st := &stream{client: r.Context()}
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), streamKey{}, st))
	defer cancel(nil)
	st.writer = newStreamWriter(w, &st.end, v.Forwarder.Limits.Idle, cancel, v.breakOff)
	defer st.writer.finish()
	defer func() { st.held.Release() }()
	r = r.WithContext(ctx)
	if refusal := v.open(st, r); refusal != nil {
		if refusal == v.broken {
			w.Header().Set("Connection", "close") // has the library end the connection: the next one may find an upstream
		}
		v.refuse(st.writer, r, refusal)
		return
	}
	v.serve(st, r)
}

// serve forwards a request that was decided, and records its end.
func (v *h2Conn) serve(st *stream, r *http.Request) {
	st.flow.OnCut(st.writer.cut)
	st.writer.strike = st.interim
	st.writer.meter = st.flow.Meter()
	st.end.Outcome = "reset" // unless it comes to its end
	defer v.streamEnded()
	defer func() {
		st.window.Release()
		st.scanned.Drop()
		st.bodyMemory.Release()
		st.end.Up = st.headBytes + st.bodyBytes.Load()
		if st.end.Outcome == "reset" && idled(r.Context()) {
			st.end.Outcome = string(carry.IdleTooLong)
		}
		if st.end.Outcome == "reset" && st.client.Err() != nil {
			st.end.Outcome = v.Outcome(exchange.ClientLeft)
		}
		if st.exceeded.Load() {
			st.end.Outcome = string(st.flow.Exceeded().Decision.Class)
		}
		st.flow.Close(st.end)
	}()
	defer func() {
		if st.end.Outcome == "reset" && st.wrongLength(r) { // after an answer has begun
			exchange.RefuseMalformed(v.Forwarder.Gate, v.Peer, v.Via, nil, errInnerBody)
		}
	}()
	// No byte of the request leaves before its record is durable.
	if err := st.flow.Wait(r.Context()); err != nil {
		v.failed(st.writer, r, err)
		return
	}
	if err := st.awaitNothing(r); err != nil {
		v.failed(st.writer, r, err)
		return
	}
	v.forward.ServeHTTP(st.writer, r)
	if st.end.Outcome == "reset" {
		st.end.Outcome = "closed"
	}
}

// open understands a request and has it decided.
func (v *h2Conn) open(st *stream, r *http.Request) *egress.Refusal {
	if v.broken != nil {
		return v.broken
	}
	err := st.understand(r)
	if err == nil && len(st.fields) > v.Forwarder.Limits.HeadFields {
		err = errInnerFields
	}
	if err != nil {
		return exchange.RefuseMalformed(v.Forwarder.Gate, v.Peer, v.Via, nil, err)
	}
	r.Body = &declaredBody{r.Body, &st.bodyFailed}
	flow, err := v.flow.Request(r.Context(), &policy.HTTPRequest{
		Method: r.Method, Path: st.target.Path, Query: st.target.Query, Header: exchange.HeaderOf(st.fields),
		BodySize: r.ContentLength, Authority: exchange.Authority(r.Host),
	}, v.bodyReader(st, r))
	if err != nil {
		return exchange.AsRefusal(err)
	}
	st.flow = flow
	if st.held != nil {
		r.Body = bodyFromStart{st.held.FromStart(), r.Body}
	}
	h := exchange.Head{Target: st.target, Fields: st.fields}
	if err := v.inspection.Secrets.Add(flow, v.dst, false, &h, &st.end); err != nil {
		refusal := exchange.AsRefusal(err)
		flow.Close(egress.End{Outcome: string(refusal.Decision.Class), Note: refusal.Note})
		return refusal
	}
	st.target, st.fields, st.redaction = h.Target, h.Fields, h.Redaction
	return nil
}

var (
	errInnerScheme = &http1.MalformedError{Problem: "a scheme other than https in a tunnel that is", Status: 400}
	errInnerMethod = &http1.MalformedError{Problem: "a method that is no token", Status: 400}
	errInnerFields = &http1.MalformedError{Problem: "too many header fields", Status: 400}
	errInnerField  = &http1.MalformedError{Problem: "a field with whitespace at the ends of its value", Status: 400} // RFC 9113 §8.2.1
	errInnerLength = &http1.MalformedError{Problem: "content-length fields that are no numbers or differ", Status: 400}
	errInnerBody   = &http1.MalformedError{Problem: "a body that is not as long as its content-length", Status: 400} // RFC 9113 §8.1.1
)

// understand fills st in from the head of r, which the library has read.
func (st *stream) understand(r *http.Request) (err error) {
	switch {
	case r.Method == http.MethodConnect:
		return exchange.ErrInnerConnect
	case r.TLS == nil:
		return errInnerScheme
	case !(http1.Field{Name: r.Method}).Valid():
		return errInnerMethod
	}
	if st.target, err = http1.ParseTarget(r.Method, r.RequestURI); err != nil {
		return err
	}
	if st.target.Form == http1.Absolute {
		return exchange.ErrProxyInside
	}
	lengths := r.Header["Content-Length"]
	switch {
	case !oneLength(lengths):
		return errInnerLength
	case r.ContentLength == 0 && saysContent(lengths): // the head ends the stream
		return errInnerBody
	}
	var f http1.Fields
	for name, values := range r.Header {
		for _, value := range values {
			f = append(f, http1.Field{Name: name, Value: value})
			if !f[len(f)-1].Valid() {
				return errInnerField
			}
		}
	}
	if f, err = http1.StripHopByHop(f); err != nil {
		return err
	}
	st.fields = http1.StripClaims(f)
	if r.ContentLength != 0 && expectsContinue(r.Body) {
		st.fields = append(st.fields, http1.Field{Name: "Expect", Value: "100-continue"})
	}
	return nil
}

// expectsContinue reports whether the client waits for 100 (Continue) before it sends a body. The library takes the
// field out of the request, and answers by itself as soon as somebody reads from the body.
func expectsContinue(body io.Reader) bool {
	v := reflect.ValueOf(body)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return false
	}
	waits := v.Elem().FieldByName("needsContinue")
	return waits.IsValid() && waits.Bool()
}

// oneLength reports whether the values of Content-Length, of which the library
// looks at the first, are one number (RFC 9110 §8.6).
func oneLength(values []string) bool {
	for _, v := range values {
		if _, err := strconv.ParseUint(v, 10, 63); err != nil || v != values[0] {
			return false
		}
	}
	return true
}

// saysContent reports whether the values of Content-Length, which are one number, say that
// there is content.
func saysContent(lengths []string) bool {
	return len(lengths) > 0 && strings.Trim(lengths[0], "0") != ""
}

// awaitNothing waits for the end of a body whose length is said to be 0. The forwarder takes
// such a request for one that has ended, and sends it as a whole.
func (st *stream) awaitNothing(r *http.Request) error {
	if r.ContentLength != 0 || len(r.Header["Content-Length"]) == 0 {
		return nil
	}
	stop := context.AfterFunc(r.Context(), st.writer.stopReading)
	defer stop()
	if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// wrongLength reports whether the request's body was not as long as its content-length. The
// body of a client that left, or of a stream that was cut, fails too; then the context is done.
func (st *stream) wrongLength(r *http.Request) bool {
	return st.bodyFailed.Load() && r.Context().Err() == nil
}

// rewrite makes the request anew for the destination that was decided, with the
// path and query byte for byte as they were judged.
func (v *h2Conn) rewrite(pr *httputil.ProxyRequest) {
	st := pr.In.Context().Value(streamKey{}).(*stream)
	host := exchange.HostField(v.dst, 443)
	pr.Out.Host = host
	pr.Out.URL = &url.URL{
		Scheme: "https", Host: host, Opaque: st.target.Path,
		RawQuery: st.target.Query, ForceQuery: st.target.HasQuery,
	}
	fields := st.fields
	trailers := pr.Out.Header.Get("Te")
	pr.Out.Header = make(http.Header, len(fields))
	for _, f := range fields {
		pr.Out.Header[f.Name] = append(pr.Out.Header[f.Name], f.Value)
	}
	if trailers != "" { // gRPC asks for them by it
		pr.Out.Header.Set("Te", trailers)
	}
	if _, named := pr.Out.Header["User-Agent"]; !named {
		pr.Out.Header["User-Agent"] = nil // or the library names itself
	}
	pr.Out.Trailer = nil // or its names go up, announced
	st.countHead(pr.In, fields)
	if pr.Out.Body != nil {
		body := pr.Out.Body
		st.bodyMemory = v.Forwarder.BodyMemory.Reserve(st.flow.Holder(), st.flow.Sandbox())
		if st.scanned = v.guard(st, pr.In, body); st.scanned != nil {
			body = st.scanned
		}
		pr.Out.Body = &countedBody{ReadCloser: body, answer: st.writer, passes: st.allowUp}
	}
}

// guard returns the body of a request as it is searched, or nil where there are no canaries.
func (v *h2Conn) guard(st *stream, in *http.Request, body io.ReadCloser) *exchange.ScannedBody {
	wanted, forget := context.WithCancel(in.Context())
	l := exchange.NewBodyScanner(st.flow, in.Header["Content-Encoding"], st.bodyMemory, v.Forwarder.ScanTurn(wanted, st.flow))
	if l == nil {
		forget()
		return nil
	}
	return &exchange.ScannedBody{ReadCloser: body, Scanner: l, Refused: func() { st.exceeded.Store(true) }, CancelTurn: forget}
}

// received has the response's head and body pass without what is reserved to
// egressd and without the host's credentials.
func (v *h2Conn) received(resp *http.Response) error {
	st := resp.Request.Context().Value(streamKey{}).(*stream)
	fields := 0
	for _, values := range resp.Header {
		fields += len(values)
	}
	switch most := v.Forwarder.Limits.ResponseFields; {
	case hinted(resp.Request.Context()):
		return exchange.MalformedResponse(st.flow, errInterim.Error())
	case !finalStatus(resp):
		return exchange.MalformedResponse(st.flow, "a status that is none")
	case fields > most:
		return exchange.MalformedResponse(st.flow, fmt.Sprintf("more than %d header fields (limits.response_fields)", most))
	}
	st.end.Status = resp.StatusCode
	var filter *exchange.BodyFilter
	if st.redaction != nil {
		if !exchange.InOnePiece(resp.StatusCode, resp.Header.Values) {
			return st.flow.Failed(policy.ResponseRefused, "")
		}
		filter = exchange.NewBodyFilter(st.flow, st.redaction, &st.end)
	}
	if resp.StatusCode == http.StatusNotModified || resp.StatusCode == http.StatusNoContent {
		resp.Body = emptyBody{resp.Body}
	}
	filter.Header(resp.Header)
	filter.Header(resp.Trailer) // the names that it announces, which are passed on with the head
	resp.Body = &redactedBody{ReadCloser: resp.Body, filter: filter, resp: resp}
	return nil
}

// interim strikes what may not pass out of the fields of an interim response.
func (st *stream) interim(h http.Header) {
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Content-Length", "Trailer"} {
		h.Del(name)
	}
	var filter *exchange.BodyFilter
	if st.redaction != nil {
		filter = exchange.NewBodyFilter(st.flow, st.redaction, &st.end)
	}
	filter.Header(h)
}

// finalStatus reports whether the status is one of a final response, in three
// digits (RFC 9110 §15). The library takes any number, with a sign too.
func finalStatus(resp *http.Response) bool {
	code, _, _ := strings.Cut(resp.Status, " ")
	return len(code) == 3 && resp.StatusCode >= 200 && resp.StatusCode <= 999
}

// failed answers for an upstream that did not.
func (v *h2Conn) failed(w http.ResponseWriter, r *http.Request, err error) {
	st := r.Context().Value(streamKey{}).(*stream)
	var refusal *egress.Refusal
	switch {
	case st.exceeded.Load():
		refusal = st.flow.Exceeded()
	case idled(r.Context()):
		refusal = st.flow.Failed(policy.NetworkTimeout, "")
	case hinted(r.Context()):
		refusal = exchange.MalformedResponse(st.flow, errInterim.Error())
	case r.Context().Err() != nil: // the client has left, or the policy has cut the stream
		panic(http.ErrAbortHandler)
	case st.wrongLength(r):
		refusal = exchange.RefuseMalformed(v.Forwarder.Gate, v.Peer, v.Via, nil, errInnerBody)
	case errors.As(err, &refusal):
		refusal = refusalFor(st.flow, refusal)
		st.end.Note = refusal.Note
	case errors.Is(err, os.ErrDeadlineExceeded):
		refusal = st.flow.Failed(policy.NetworkTimeout, "")
	case v.certificateAsked.Load():
		refusal = st.flow.Failed(policy.NetworkTLS, wantsCertificate)
	case errors.Is(err, errEmptyFrames):
		st.end.Note = "the destination sent " + errEmptyFrames.Error()
		refusal = st.flow.Failed(policy.NetworkTLS, st.end.Note)
	default:
		refusal = st.flow.Failed(policy.NetworkTLS, "")
		if problem := unreadable(err); problem != "" {
			refusal = exchange.MalformedResponse(st.flow, problem)
		}
	}
	st.end.Outcome, st.end.Note = string(refusal.Decision.Class), cmp.Or(refusal.Note, st.end.Note)
	v.refuse(w, r, refusal)
}

// resetByPeer is how the library tells streams that the upstream has reset from those that it has reset itself,
// and largeHead why it did; that it still does so is under test.
const (
	resetByPeer = "received from peer"
	largeHead   = "http2: response header list larger than advertised limit"
)

// unreadable returns what was wrong with a response that the library could not read. It returns "" for every other
// error.
func unreadable(err error) string {
	var stream http2.StreamError
	var conn http2.ConnectionError
	switch {
	case errors.As(err, &conn) && conn == http2.ConnectionError(http2.ErrCodeCompression): // of one field alone, too
		return "a head that is too large (limits.response_head_bytes), or that cannot be unpacked"
	case errors.As(err, &conn):
		return "it breaks the rules of HTTP/2"
	case !errors.As(err, &stream) || stream.Cause == nil || stream.Cause.Error() == resetByPeer:
		return ""
	case stream.Cause.Error() == largeHead:
		return "a head that is too large (limits.response_head_bytes)"
	}
	return "it breaks the rules of HTTP/2"
}

func (v *h2Conn) refuse(w http.ResponseWriter, r *http.Request, refusal *egress.Refusal) {
	a := exchange.TunnelAnswer(refusal.Decision.Class)
	status, fields, body := exchange.ReplyParts(refusal, a, exchange.Recipient{Agent: r.UserAgent(), Accept: r.Header.Get("Accept")})
	for _, f := range fields {
		w.Header().Set(f.Name, f.Value)
	}
	w.WriteHeader(status)
	w.Write(body)
	http.NewResponseController(w).Flush() // while the stream is held to its time
}

// countHead counts the head of the request, which is no part of what its budget is
// for.
func (st *stream) countHead(r *http.Request, fields http1.Fields) {
	st.headBytes = int64(len(r.Method) + len(r.RequestURI) + len(r.Host))
	for _, f := range fields {
		st.headBytes += int64(len(f.Name) + len(": \r\n") + len(f.Value))
	}
	st.writer.meter.Up.Add(st.headBytes)
}

// allowUp is that of an exchange, for a stream of HTTP/2.
func (st *stream) allowUp(n int) error {
	if most := st.flow.Budget(); most > 0 && st.bodyBytes.Load()+int64(n) > most {
		st.exceeded.Store(true)
		return st.flow.Exceeded()
	}
	st.bodyBytes.Add(int64(n))
	st.writer.meter.Up.Add(int64(n))
	return nil
}

// A countedBody counts the bytes of a request's body that go up, and fails beyond the byte
// budget.
type countedBody struct {
	io.ReadCloser
	answer *streamWriter
	passes func(n int) error // asked about each part
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.answer.moved()
	if over := b.passes(n); over != nil {
		return 0, over
	}
	return n, err
}

// A declaredBody is the body of a request as the library reads it. The library compares it with
// the declared length, and reports a difference as an error without a type.
type declaredBody struct {
	io.ReadCloser
	failing *atomic.Bool // is set by any error
}

func (b *declaredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.failing.Store(true)
	}
	return n, err
}

// An emptyBody is that of a response whose status has no content (RFC 9110 §6.4.1). Its
// Content-Length does not count bytes that come, and the library misses them.
type emptyBody struct{ io.ReadCloser }

func (b emptyBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n == 0 && errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

// A redactedBody is a response's body without the credential that its request
// carried. When it is over, its trailer is struck as well.
type redactedBody struct {
	io.ReadCloser
	filter *exchange.BodyFilter
	resp   *http.Response
	ready  []byte // struck, and not yet read
	err    error
}

func (b *redactedBody) Read(p []byte) (int, error) {
	if b.filter == nil {
		n, err := b.ReadCloser.Read(p)
		b.ended(err)
		return n, err
	}
	for len(b.ready) == 0 && b.err == nil {
		n, err := b.ReadCloser.Read(p)
		part := b.filter.Redact(p[:n])
		if errors.Is(err, io.EOF) {
			part = b.filter.RedactLast(part)
		}
		b.err = err
		b.ended(err)
		if len(part) <= len(p) && (n > 0 || len(part) > 0) {
			if copied := copy(p, part); copied > 0 {
				return copied, nil
			}
		}
		b.ready = append([]byte(nil), part...)
	}
	if len(b.ready) == 0 {
		return 0, b.err
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}

func (b *redactedBody) ended(err error) {
	if errors.Is(err, io.EOF) {
		b.filter.Header(b.resp.Trailer)
	}
}

// bodyReader returns what reads the body of a stream before it is decided. The library says 100 (Continue) to a client that
// waits for it.
func (v *h2Conn) bodyReader(st *stream, r *http.Request) egress.ReadBody {
	return func(f *egress.Flow, whole bool) (*policy.Body, *policy.Decision) {
		stop := context.AfterFunc(r.Context(), st.writer.stopReading)
		defer stop()
		if st.held == nil {
			st.held = v.Forwarder.Hold(r.Context(), f, r.Body, r.ContentLength, r.Header["Content-Encoding"])
		}
		return st.held.ReadOn(whole, st.writer.moved)
	}
}

// A bodyFromStart is a request's body with what was read of it put back in front.
type bodyFromStart struct {
	io.Reader
	io.Closer
}
