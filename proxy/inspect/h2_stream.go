package inspect

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/proxy/exchange"
)

// A stream is an exchange whose client and upstream speak HTTP/2. It implements [exchange.Ends].
type stream struct {
	*exchange.Exchange
	conn   *h2Conn
	asked  *http.Request
	writer *streamWriter
	window *fair.Reservation     // of the connection that it goes over, or nil
	body   *exchange.PassingBody // of the request as it goes up, or nil
	resp   *http.Response        // nil before it has come
	reused bool                  // the connection may have served other requests

	aborted bool // the response ends by a reset of the stream
}

// ServeHTTP implements [http.Handler].
func (v *h2Conn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !v.enter() {
		return
	}
	defer v.running.Done()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	st := &stream{conn: v, asked: r, writer: newStreamWriter(w, v.Forwarder.Limits.Idle, cancel, v.breakOff)}
	defer st.writer.finish()
	st.Exchange = &exchange.Exchange{Client: v.Client, Tunnel: v.tunnel, Ends: st, Stream: r.Context(), Context: ctx, Leave: cancel, OnCut: st.writer.cut}
	defer context.AfterFunc(ctx, st.writer.stopReading)()
	if err := st.understand(r); err != nil {
		st.Misread(nil, err)
		return
	}
	defer v.streamEnded()
	st.do()
	if st.aborted {
		panic(http.ErrAbortHandler) // has the library reset the stream
	}
}

// do is [exchange.Exchange.Do]. The library would keep a panic to itself.
func (st *stream) do() {
	defer recovered.Log("serving a request over HTTP/2", st.Abort)
	st.Do()
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
	st.Method, st.Length, st.Destination, st.Authority = r.Method, r.ContentLength, st.conn.dst, exchange.Authority(r.Host)
	st.Recipient = answer.RecipientOf(fieldsOf(r.Header))
	switch {
	case r.Method == http.MethodConnect:
		return exchange.ErrInnerConnect
	case r.TLS == nil:
		return errInnerScheme
	case !(http1.Field{Name: r.Method}).Valid():
		return errInnerMethod
	}
	if st.Target, err = http1.ParseTarget(r.Method, r.RequestURI); err != nil {
		return err
	}
	if st.Target.Form == http1.Absolute {
		return exchange.ErrProxyInside
	}
	lengths := r.Header["Content-Length"]
	switch {
	case !oneLength(lengths):
		return errInnerLength
	case r.ContentLength == 0 && saysContent(lengths): // the head ends the stream
		return errInnerBody
	}
	if len(r.Header["Expect"]) > 0 { // the library has taken 100-continue out
		return http1.ErrExpectation
	}
	f := fieldsOf(r.Header)
	for _, field := range f {
		if !field.Valid() {
			return errInnerField
		}
	}
	if f, err = http1.StripHopByHop(f); err != nil {
		return err
	}
	f, st.ReplacesMethod = http1.StripClaims(f)
	st.Fields = asWritten(f, r.Method, r.ContentLength)
	if r.ContentLength != 0 {
		st.Body, st.BeforeBody = r.Body, st.writer.moved
	}
	if r.ContentLength != 0 && expectsContinue(r.Body) {
		st.Hops = append(st.Hops, http1.Field{Name: "Expect", Value: "100-continue"})
	}
	if r.Header.Get("Te") == "trailers" { // gRPC asks for them by it
		st.Hops = append(st.Hops, http1.Field{Name: "Te", Value: "trailers"})
	}
	if len(st.Fields)+len(st.Hops) > st.conn.Forwarder.Limits.HeadFields {
		return errInnerFields
	}
	return nil
}

// asWritten returns the fields of a request as the library writes them, so that they are judged like this: it writes the
// length of the body that it knows, one User-Agent, and each cookie in a field of its own (RFC 9113 section 8.2.3).
func asWritten(f http1.Fields, method string, length int64) (out http1.Fields) {
	agent := false
	for _, field := range f {
		switch field.Name {
		case "Content-Length":
			continue
		case "User-Agent":
			if agent || field.Value == "" {
				continue
			}
			agent = true
		case "Cookie":
			if field.Value = cookies(field.Value); field.Value == "" {
				continue
			}
		}
		out = append(out, field)
	}
	if length > 0 || length == 0 && (method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch) {
		out = append(out, http1.Field{Name: "Content-Length", Value: strconv.FormatInt(length, 10)})
	}
	return out
}

// cookies returns a Cookie field without blanks around cookies, which no field of HTTP/2 may end in, and without empty ones.
func cookies(value string) string {
	var all []string
	for one := range strings.SplitSeq(value, ";") {
		if one = strings.Trim(one, " \t"); one != "" {
			all = append(all, one)
		}
	}
	return strings.Join(all, "; ")
}

// fieldsOf returns the fields of a message that the library has read.
func fieldsOf(h http.Header) (f http1.Fields) {
	for name, values := range h {
		for _, value := range values {
			f = append(f, http1.Field{Name: name, Value: value})
		}
	}
	return f
}

// add adds fields to a message for the library.
func add(h http.Header, f http1.Fields) {
	for _, field := range f {
		h[field.Name] = append(h[field.Name], field.Value)
	}
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

// Reach implements [exchange.Ends]. The streams of a tunnel share its connection while that takes requests.
func (st *stream) Reach(reuse bool) error {
	v := st.conn
	st.reused = reuse && v.answered.Load()
	if err := v.lockUpstream(st.Context); err != nil {
		return err
	}
	defer v.unlockUpstream()
	defer st.Flow.Over(v.flow)
	if v.conn != nil && v.conn.CanTakeNewRequest() {
		return nil
	}
	if v.hasEnded() {
		return context.Canceled
	}
	upstream, err := v.Redial(st.Context, st.Flow)
	if err != nil {
		return err
	}
	v.retire()
	if v.startUpstream(upstream) != nil {
		return st.Flow.Failed(policy.NetworkReset, "")
	}
	return nil
}

// Send implements [exchange.Ends]. The path and query go up byte for byte as they were judged.
func (st *stream) Send() (*http1.Response, error) {
	if err := st.awaitNothing(); err != nil {
		return nil, err
	}
	conn, err := st.reserve()
	if err != nil {
		return nil, err
	}
	defer st.writer.noMoreHints()
	out, err := st.request()
	if err != nil {
		return nil, err
	}
	st.resp, err = conn.RoundTrip(out)
	switch {
	case err == nil:
		st.conn.answered.Store(true)
		return st.response()
	case st.reused && st.body == nil && exchange.Idempotent(st.Method) && !conn.CanTakeNewRequest():
		return nil, errors.Join(exchange.ErrStale, err)
	}
	return nil, st.failure(err)
}

// reserve takes a stream on the connection for the request, which has to be sent then.
func (st *stream) reserve() (*http2.ClientConn, error) {
	v := st.conn
	if err := v.lockUpstream(st.Context); err != nil {
		return nil, err
	}
	defer v.unlockUpstream()
	if v.conn == nil || !st.holdWindow(v.window) || !v.conn.ReserveNewRequest() {
		return nil, exchange.ErrStale
	}
	return v.conn, nil
}

// awaitNothing waits for the end of a body whose length is said to be 0. Such a request is sent as one that has ended.
func (st *stream) awaitNothing() error {
	r := st.asked
	if r.ContentLength != 0 || len(r.Header["Content-Length"]) == 0 {
		return nil
	}
	if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return st.misread(err)
	}
	return nil
}

// misread returns why the body of the request could not be read. The library compares it with the declared length, and
// reports a difference as an error without a type.
func (st *stream) misread(err error) error {
	if err != nil && st.Context.Err() == nil {
		return errInnerBody
	}
	return err
}

// request writes the request anew for the destination that was decided. The error is a [*egress.Refusal].
func (st *stream) request() (*http.Request, error) {
	host := exchange.HostField(st.Destination, 443)
	out := &http.Request{
		Method: st.Method, Host: host, ContentLength: st.Length, Proto: "HTTP/2.0", ProtoMajor: 2,
		URL:    &url.URL{Scheme: "https", Host: host, Opaque: st.Target.Path, RawQuery: st.Target.Query, ForceQuery: st.Target.HasQuery},
		Header: http.Header{"User-Agent": nil}, // or the library names itself
	}
	fields := st.AppendFields(nil)
	add(out.Header, fields)
	size := len(st.Method) + len(st.asked.RequestURI) + len(st.asked.Host)
	for _, f := range fields {
		size += len(f.Name) + len(": \r\n") + len(f.Value)
	}
	if err := st.SpendHead(size); err != nil {
		return nil, err
	}
	if st.Length != 0 {
		st.body = st.Upload(st.Context, st.writer.moved)
		out.Body = st.body
	}
	trace := &httptrace.ClientTrace{Got1xxResponse: st.interim}
	return out.WithContext(httptrace.WithClientTrace(st.Context, trace)), nil
}

// interim passes an interim response on. It ends the request with an error.
func (st *stream) interim(status int, h textproto.MIMEHeader) error {
	fields, err := st.Interim(fieldsOf(http.Header(h)))
	if err == nil {
		st.writer.hint(status, fields)
	}
	return err
}

// response judges the head of the response as far as the library does not, and HTTP/1's parser does.
func (st *stream) response() (*http1.Response, error) {
	fields := fieldsOf(st.resp.Header)
	if most := st.conn.Forwarder.Limits.ResponseFields; len(fields) > most {
		return nil, st.Malformed(fmt.Sprintf("more than %d header fields (limits.response_fields)", most))
	}
	if !finalStatus(st.resp) {
		return nil, st.Malformed("a status that is none")
	}
	return &http1.Response{Status: st.resp.StatusCode, Fields: fields}, nil
}

// finalStatus reports whether the status is one of a final response, in three
// digits (RFC 9110 §15). The library takes any number, with a sign too.
func finalStatus(resp *http.Response) bool {
	code, _, _ := strings.Cut(resp.Status, " ")
	return len(code) == 3 && resp.StatusCode >= 200 && resp.StatusCode <= 999
}

// failure returns why a request had no response.
func (st *stream) failure(err error) error {
	var reset http2.StreamError
	var refusal *egress.Refusal
	switch {
	case errors.As(err, &reset) && errors.As(reset.Cause, &refusal): // of an interim response
		return refusal
	case st.Context.Err() != nil, st.conn.certificateAsked.Load():
		return err
	case errors.Is(err, errEmptyFrames):
		return st.Malformed(errEmptyFrames.Error())
	}
	if problem := unreadable(err); problem != "" {
		return st.Malformed(problem)
	}
	return err
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

// Answer implements [exchange.Ends].
func (st *stream) Answer(r *http1.Response) error {
	h, resp := st.writer.Header(), st.resp
	h["Content-Type"] = nil // or the library guesses one from the body
	add(h, r.Fields)
	for _, announced := range st.Passing(fieldsOf(namesOf(resp.Trailer))) {
		h.Add("Trailer", announced.Name)
	}
	st.writer.atOnce = resp.ContentLength < 0
	st.writer.WriteHeader(r.Status)
	if r.Status == http.StatusNotModified || r.Status == http.StatusNoContent {
		resp.Body = emptyBody{resp.Body}
	}
	if err := st.conn.Forwarder.Pass(st.writer, st.Download(resp.Body, st.writer.moved), st.CountDown); err != nil {
		return err
	}
	if len(resp.Trailer) == 0 {
		return nil
	}
	for _, f := range st.Passing(fieldsOf(resp.Trailer)) {
		h[http.TrailerPrefix+f.Name] = append(h[http.TrailerPrefix+f.Name], f.Value)
	}
	return st.writer.FlushError() // or the library adds a length
}

// namesOf returns the names of trailer fields whose values have yet to come.
func namesOf(trailer http.Header) http.Header {
	names := make(http.Header, len(trailer))
	for name := range trailer {
		names[name] = []string{""}
	}
	return names
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

// Settle implements [exchange.Ends].
func (st *stream) Settle(err error) error {
	if st.resp != nil {
		st.resp.Body.Close()
	}
	st.window.Release()
	sent := st.body.Drop()
	var over *egress.Refusal
	switch {
	case errors.As(sent, &over):
		return exchange.Together(err, over)
	case err != nil && st.misread(sent) == errInnerBody:
		return exchange.Together(err, errInnerBody)
	}
	return err // the upstream has answered without the rest of the body, or the client has left
}

// Reply implements [exchange.Ends].
func (st *stream) Reply(r answer.Reply) {
	w := st.writer
	if st.conn.broken != nil {
		w.Header().Set("Connection", "close") // has the library end the connection: the next one may find an upstream
	}
	add(w.Header(), r.Fields)
	w.WriteHeader(r.Status)
	w.Write(r.Body)
	w.FlushError() // while the stream is held to its time
}

// Abort implements [exchange.Ends].
func (st *stream) Abort() { st.aborted = true }
