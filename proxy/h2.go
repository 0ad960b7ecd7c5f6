package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/internal/secret"
	"github.com/egressd/egressd/policy"
)

// Bounds of one inspected HTTP/2 connection. What floods beyond them (resets,
// CONTINUATION, SETTINGS, PING) the library ends by itself.
const (
	streamsMost    = 128
	frameMost      = 16 << 10
	malformedMost  = 64 // records of what could not be read; then the connection ends
	uploadBuffer   = 1 << 20
	dynamicTable   = 4 << 10
	uploadOfStream = 512 << 10
)

// An h2Visit is one client that speaks HTTP/2 in an inspected tunnel. Each of
// its streams is decided on its own and goes to the one upstream of the tunnel.
type h2Visit struct {
	*inside
	forward  *httputil.ReverseProxy
	answered atomic.Bool // the upstream has answered a request

	dialling chan struct{}       // has room for one, who may touch what follows, also while a connection is made
	conn     *http2.ClientConn   // to the upstream
	old      []*http2.ClientConn // that take no more requests, and may not be through with all they had

	state     sync.Mutex // guards what follows
	malformed int
	over      bool
	running   sync.WaitGroup

	complaints complaints
}

// complaints counts what the library says to an operator when it ends a
// connection for what the client sent: in some places it counts no error. Of
// the rest that it says, such as that a client takes its leave, nothing counts.
type complaints struct{ atomic.Int64 }

// brokenRules is how the library begins to say so; that it still does is under
// test.
const brokenRules = "http2: server connection error"

func (c *complaints) Write(b []byte) (int, error) {
	if strings.HasPrefix(string(b), brokenRules) {
		c.Add(1)
	}
	return len(b), nil
}

// serveH2 serves streams until the client's connection ends. far is nil where
// the upstream could not be had.
func (s *Server) serveH2(i *inside, client, far *tls.Conn) {
	v := &h2Visit{inside: i, dialling: make(chan struct{}, 1)}
	v.forward = &httputil.ReverseProxy{
		Rewrite:        v.rewrite,
		Transport:      v,
		FlushInterval:  -1, // each part as soon as it is there
		ModifyResponse: v.received,
		ErrorHandler:   v.failed,
		ErrorLog:       log.New(io.Discard, "", 0),
		BufferPool:     v,
	}
	if far != nil && v.speak(far) != nil {
		i.broken = i.flow.Failed(policy.NetworkTLS, "")
	}
	h2s := &http2.Server{
		MaxConcurrentStreams:         streamsMost,
		MaxReadFrameSize:             frameMost,
		MaxDecoderHeaderTableSize:    dynamicTable,
		IdleTimeout:                  s.limits.Idle,
		WriteByteTimeout:             s.limits.Idle,
		MaxUploadBufferPerConnection: uploadBuffer,
		MaxUploadBufferPerStream:     uploadOfStream,
		CountError:                   v.unreadable,
	}
	watched := watchHeads(client, s.limits.HeadBytes, v.unreadable)
	watched.expect(s.limits.Head, v.headLate)
	h2s.ServeConn(watched, &http2.ServeConnOpts{
		Handler:    v,
		BaseConfig: &http.Server{MaxHeaderBytes: s.limits.HeadBytes, ErrorLog: log.New(&v.complaints, "", 0)},
	})
	watched.timer.Stop()
	v.end()
	if watched.greeted.Load() { // and has not just left
		v.explain()
	}
}

// end waits for the streams whose connection is gone.
func (v *h2Visit) end() {
	v.state.Lock()
	v.over = true
	v.state.Unlock()
	v.hangUp()
	v.running.Wait()
}

func (v *h2Visit) begin() bool {
	v.state.Lock()
	defer v.state.Unlock()
	if !v.over {
		v.running.Add(1)
	}
	return !v.over
}

func (v *h2Visit) ended() bool {
	v.state.Lock()
	defer v.state.Unlock()
	return v.over
}

// lateData is how the library counts a frame of a body whose stream it has
// ended: what a client had sent before it knew.
const lateData = "stream_STREAM_CLOSED_closed"

// unreadable records what the library refused before it was a request.
func (v *h2Visit) unreadable(kind string) {
	if kind == lateData {
		return
	}
	v.state.Lock()
	v.malformed++
	n := v.malformed
	v.state.Unlock()
	switch {
	case n < malformedMost:
		v.server.Gate.Refuse(v.peer, v.via, nil, policy.MalformedRequest, "HTTP/2: "+strings.ReplaceAll(kind, "_", " "))
	case n == malformedMost:
		v.breakOff(string(policy.MalformedRequest))
	}
}

// headLate ends a connection on which a head was begun and not completed.
func (v *h2Visit) headLate() {
	if !v.begin() {
		return
	}
	defer v.running.Done()
	v.unreadable(errHeadLate.Error())
	v.breakOff(string(policy.MalformedRequest))
}

// explain records that the library ended the connection for what the client
// sent, where nothing else says so.
func (v *h2Visit) explain() {
	v.state.Lock()
	n := v.malformed
	v.state.Unlock()
	if n == 0 && v.complaints.Load() > 0 {
		v.unreadable("what the client sent breaks its rules")
	}
}

// A stream is one request, from its head to the end of its response.
type stream struct {
	flow   *egress.Flow
	target http1.Target
	fields http1.Fields
	secret *secret.Secret
	answer *streamAnswer
	head   int64        // bytes of its head, as HTTP/1 would have them
	up     atomic.Int64 // bytes of its body
	end    egress.End

	exceeded atomic.Bool // its body was more than may go up, or held what may not
}

// streamKey finds the stream in the context of its request.
type streamKey struct{}

// ServeHTTP implements [http.Handler].
func (v *h2Visit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !v.begin() {
		return
	}
	defer v.running.Done()
	st := new(stream)
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), streamKey{}, st))
	defer cancel(nil)
	st.answer = newStreamAnswer(w, &st.end, v.server.limits.Idle, cancel, v.breakOff)
	defer st.answer.finish()
	r = r.WithContext(ctx)
	if refusal := v.open(st, r); refusal != nil {
		if refusal == v.broken {
			w.Header().Set("Connection", "close") // has the library end the connection: the next one may find an upstream
		}
		v.refuse(st.answer, r, refusal)
		return
	}
	v.serve(st, r)
}

// serve forwards a request that was decided, and records its end.
func (v *h2Visit) serve(st *stream, r *http.Request) {
	st.flow.OnCut(st.answer.cut)
	st.answer.meter = st.flow.Meter()
	st.end.Outcome = "reset" // unless it comes to its end
	defer v.streamEnded()
	defer func() {
		st.end.Up = st.head + st.up.Load()
		if st.end.Outcome == "reset" && idled(r.Context()) {
			st.end.Outcome = string(relay.IdleTooLong)
		}
		if st.exceeded.Load() {
			st.end.Outcome = string(st.flow.Exceeded().Decision.Class)
		}
		st.flow.Close(st.end)
	}()
	if err := st.flow.Wait(r.Context()); err != nil {
		v.failed(st.answer, r, err)
		return
	}
	v.forward.ServeHTTP(st.answer, r)
	if st.end.Outcome == "reset" {
		st.end.Outcome = "closed"
	}
}

// open understands a request and has it decided.
func (v *h2Visit) open(st *stream, r *http.Request) *egress.Refusal {
	if v.broken != nil {
		return v.broken
	}
	err := st.understand(r)
	if err == nil && len(st.fields) > v.server.limits.HeadFields {
		err = errInnerFields
	}
	if err != nil {
		return refuseMalformed(v.server.Gate, v.peer, v.via, nil, err)
	}
	flow, err := v.flow.Request(context.Background(), &policy.HTTPRequest{
		Method: r.Method, Path: st.target.Path, Query: st.target.Query, Header: headerOf(st.fields),
		BodySize: r.ContentLength, Authority: authority(r.Host),
	})
	if err != nil {
		return asRefusal(err)
	}
	st.flow = flow
	if st.secret, err = v.credential(flow); err != nil {
		refusal := asRefusal(err)
		flow.Close(egress.End{Outcome: string(refusal.Decision.Class)})
		return refusal
	}
	return nil
}

var (
	errInnerScheme = &http1.MalformedError{Problem: "a scheme other than https in a tunnel that is", Status: 400}
	errInnerMethod = &http1.MalformedError{Problem: "a method that is no token", Status: 400}
	errInnerFields = &http1.MalformedError{Problem: "too many header fields", Status: 400}
	errInnerField  = &http1.MalformedError{Problem: "a field with whitespace at the ends of its value", Status: 400} // RFC 9113 §8.2.1
	errInnerLength = &http1.MalformedError{Problem: "content-length fields that are no numbers or differ", Status: 400}
)

// understand fills st in from the head of r, which the library has read.
func (st *stream) understand(r *http.Request) (err error) {
	switch {
	case r.Method == http.MethodConnect:
		return errInnerConnect
	case r.TLS == nil:
		return errInnerScheme
	case !(http1.Field{Name: r.Method}).Valid():
		return errInnerMethod
	}
	if st.target, err = http1.ParseTarget(r.Method, r.RequestURI); err != nil {
		return err
	}
	if st.target.Form == http1.Absolute {
		return errOtherHost
	}
	if !oneLength(r.Header["Content-Length"]) {
		return errInnerLength
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
	return nil
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

// rewrite makes the request anew for the place that was decided, with the
// path and query byte for byte as they were judged.
func (v *h2Visit) rewrite(pr *httputil.ProxyRequest) {
	st := pr.In.Context().Value(streamKey{}).(*stream)
	host := hostField(v.dst, 443)
	pr.Out.Host = host
	pr.Out.URL = &url.URL{
		Scheme: "https", Host: host, Opaque: st.target.Path,
		RawQuery: st.target.Query, ForceQuery: st.target.HasQuery,
	}
	fields := st.fields
	if st.secret != nil {
		fields = withCredential(fields, st.secret)
	}
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
		if l := bodyLeaving(st.flow, pr.In.Header["Content-Encoding"]); l != nil {
			body = &guardedBody{ReadCloser: body, leaving: l, found: func() { st.exceeded.Store(true) }}
		}
		pr.Out.Body = &countedBody{ReadCloser: body, answer: st.answer, passes: st.mayGoUp}
	}
}

// received has the response's head and body pass without what is reserved to
// egressd and without the credential.
func (v *h2Visit) received(resp *http.Response) error {
	st := resp.Request.Context().Value(streamKey{}).(*stream)
	if hinted(resp.Request.Context()) || !finalStatus(resp) {
		return st.flow.Failed(policy.NetworkTLS, "")
	}
	st.end.Status = resp.StatusCode
	var strike *striker
	if st.secret != nil {
		if !inOnePiece(resp.StatusCode, resp.Header.Values) {
			return st.flow.Failed(policy.ResponseRefused, "")
		}
		strike = newStriker(st.secret, &st.end)
	}
	strike.header(resp.Header)
	strike.header(resp.Trailer) // the names that it announces, which are passed on with the head
	resp.Body = &struckBody{ReadCloser: resp.Body, strike: strike, resp: resp}
	return nil
}

// finalStatus reports whether the status is one of a final response, in three
// digits (RFC 9110 §15). The library takes any number, with a sign too.
func finalStatus(resp *http.Response) bool {
	code, _, _ := strings.Cut(resp.Status, " ")
	return len(code) == 3 && resp.StatusCode >= 200 && resp.StatusCode <= 999
}

// failed answers for an upstream that did not.
func (v *h2Visit) failed(w http.ResponseWriter, r *http.Request, err error) {
	st := r.Context().Value(streamKey{}).(*stream)
	var refusal *egress.Refusal
	switch {
	case st.exceeded.Load():
		refusal = st.flow.Exceeded()
	case idled(r.Context()):
		refusal = st.flow.Failed(policy.NetworkTimeout, "")
	case hinted(r.Context()):
		refusal = st.flow.Failed(policy.NetworkTLS, "")
	case r.Context().Err() != nil: // the client has left, or the policy has cut the stream
		panic(http.ErrAbortHandler)
	case errors.As(err, &refusal):
		refusal = st.own(refusal)
	case errors.Is(err, os.ErrDeadlineExceeded):
		refusal = st.flow.Failed(policy.NetworkTimeout, "")
	case v.asked.Load():
		refusal = st.flow.Failed(policy.NetworkTLS, wantsCertificate)
	default:
		refusal = st.flow.Failed(policy.NetworkTLS, "")
	}
	st.end.Outcome = string(refusal.Decision.Class)
	v.refuse(w, r, refusal)
}

// own is a refusal of the stream's flow in place of one of the tunnel's, so
// that who is told of it finds the request in the log.
func (st *stream) own(refusal *egress.Refusal) *egress.Refusal {
	own := st.flow.Failed(refusal.Decision.Class, "")
	own.Decision = refusal.Decision
	return own
}

func (v *h2Visit) refuse(w http.ResponseWriter, r *http.Request, refusal *egress.Refusal) {
	a := answerInside(refusal.Decision.Class)
	fields, body := replyParts(refusal, a, reader{agent: r.UserAgent(), accept: r.Header.Get("Accept")})
	for _, f := range fields {
		w.Header().Set(f.Name, f.Value)
	}
	w.WriteHeader(a.status)
	w.Write(body)
	http.NewResponseController(w).Flush() // while the stream is held to its time
}

// Get and Put implement [httputil.BufferPool].
func (v *h2Visit) Get() []byte { return v.server.buffers.Get().(*[bodyBuffer]byte)[:] }

func (v *h2Visit) Put(b []byte) {
	if len(b) == bodyBuffer {
		v.server.buffers.Put((*[bodyBuffer]byte)(b))
	}
}
