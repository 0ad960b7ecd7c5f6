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
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
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

	dialling sync.Mutex // guards what follows; held while a connection is made
	far      *http2.ClientConn
	old      []*http2.ClientConn // that take no more requests, and may not be through with all they had

	mu        sync.Mutex // guards what follows
	malformed int
	over      bool
	running   sync.WaitGroup

	complaints complaints
}

// complaints counts what the library has to say to an operator: why it ends a
// connection where it counts no error. Its words are nobody's contract.
type complaints struct{ atomic.Int64 }

func (c *complaints) Write(b []byte) (int, error) {
	c.Add(1)
	return len(b), nil
}

// serveH2 serves streams until the client's connection ends. far is nil where
// the upstream could not be had.
func (s *Server) serveH2(i *inside, client, far *tls.Conn) {
	v := &h2Visit{inside: i}
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
	h2s.ServeConn(watched, &http2.ServeConnOpts{
		Handler:    v,
		BaseConfig: &http.Server{MaxHeaderBytes: s.limits.HeadBytes, ErrorLog: log.New(&v.complaints, "", 0)},
	})
	v.end()
	if watched.greeted.Load() { // and has not just left
		v.explain()
	}
}

// speak begins HTTP/2 with the upstream.
func (v *h2Visit) speak(far *tls.Conn) error {
	t := &http2.Transport{
		DisableCompression:         true,
		MaxHeaderListSize:          uint32(v.server.limits.HeadBytes),
		MaxDecoderHeaderTableSize:  dynamicTable,
		MaxReadFrameSize:           frameMost,
		WriteByteTimeout:           v.server.limits.Idle,
		StrictMaxConcurrentStreams: true,
	}
	cc, err := t.NewClientConn(far)
	v.far = cc
	return err
}

// end waits for the streams whose connection is gone.
func (v *h2Visit) end() {
	v.mu.Lock()
	v.over = true
	v.mu.Unlock()
	v.closeFar() // also ends a handshake under way
	v.dialling.Lock()
	for _, far := range append(v.old, v.far) {
		if far != nil {
			far.Close()
		}
	}
	v.dialling.Unlock()
	v.running.Wait()
}

func (v *h2Visit) begin() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.over {
		v.running.Add(1)
	}
	return !v.over
}

// lateData is how the library counts a frame of a body whose stream it has
// ended: what a client had sent before it knew.
const lateData = "stream_STREAM_CLOSED_closed"

// unreadable records what the library refused before it was a request.
func (v *h2Visit) unreadable(kind string) {
	if kind == lateData {
		return
	}
	v.mu.Lock()
	v.malformed++
	n := v.malformed
	v.mu.Unlock()
	switch {
	case n < malformedMost:
		v.server.Gate.Refuse(v.peer, v.via, nil, policy.MalformedRequest, "HTTP/2: "+strings.ReplaceAll(kind, "_", " "))
	case n == malformedMost:
		v.cut()
	}
}

// explain records that the library ended the connection for what the client
// sent, where nothing else says so.
func (v *h2Visit) explain() {
	v.mu.Lock()
	n := v.malformed
	v.mu.Unlock()
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
	up     atomic.Int64 // bytes of its body
	end    egress.End
}

// streamKey finds the stream in the context of its request.
type streamKey struct{}

// ServeHTTP implements [http.Handler].
func (v *h2Visit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !v.begin() {
		return
	}
	defer v.running.Done()
	st, refusal := v.open(r)
	if refusal != nil {
		if refusal == v.broken {
			w.Header().Set("Connection", "close") // has the library end the connection: the next one may find an upstream
		}
		v.refuse(w, r, refusal)
		return
	}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), streamKey{}, st))
	defer cancel()
	st.flow.OnCut(cancel)
	out := &streamAnswer{ResponseWriter: w, end: &st.end}
	st.end.Outcome = "reset" // unless it comes to its end
	defer func() {
		st.end.Up = st.up.Load()
		st.flow.Close(st.end)
	}()
	if err := st.flow.Wait(ctx); err != nil {
		v.failed(out, r, err)
		return
	}
	v.forward.ServeHTTP(out, r.WithContext(ctx))
	if st.end.Outcome == "reset" {
		st.end.Outcome = "closed"
	}
}

// open understands a request and has it decided.
func (v *h2Visit) open(r *http.Request) (*stream, *egress.Refusal) {
	if v.broken != nil {
		return nil, v.broken
	}
	st := new(stream)
	err := st.understand(r)
	if err == nil && len(st.fields) > v.server.limits.HeadFields {
		err = errInnerFields
	}
	if err != nil {
		return nil, refuseMalformed(v.server.Gate, v.peer, v.via, nil, err)
	}
	flow, err := v.flow.Request(context.Background(), &policy.HTTPRequest{
		Method: r.Method, Path: st.target.Path, Query: st.target.Query,
		BodySize: r.ContentLength, Authority: authority(r.Host),
	})
	if err != nil {
		return nil, asRefusal(err)
	}
	st.flow = flow
	if st.secret, err = v.credential(flow); err != nil {
		refusal := asRefusal(err)
		flow.Close(egress.End{Outcome: string(refusal.Decision.Class)})
		return nil, refusal
	}
	return st, nil
}

var (
	errInnerScheme = &http1.MalformedError{Problem: "a scheme other than https in a tunnel that is", Status: 400}
	errInnerMethod = &http1.MalformedError{Problem: "a method that is no token", Status: 400}
	errInnerFields = &http1.MalformedError{Problem: "too many header fields", Status: 400}
	errInnerField  = &http1.MalformedError{Problem: "a field with whitespace at the ends of its value", Status: 400} // RFC 9113 §8.2.1
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
	if pr.Out.Body != nil {
		pr.Out.Body = &countedBody{ReadCloser: pr.Out.Body, n: &st.up}
	}
}

// RoundTrip implements [http.RoundTripper] on the tunnel's one upstream. A
// request that may be sent twice is, where the upstream was about to close the
// connection that it went to.
func (v *h2Visit) RoundTrip(r *http.Request) (*http.Response, error) {
	far, err := v.upstream(r.Context())
	if err != nil {
		return nil, err
	}
	reused := v.answered.Load()
	resp, err := far.RoundTrip(r)
	if err == nil {
		v.answered.Store(true)
		return resp, nil
	}
	if !reused || r.Body != nil || !idempotent(r.Method) || r.Context().Err() != nil || far.CanTakeNewRequest() {
		return nil, err
	}
	if far, err = v.upstream(r.Context()); err != nil {
		return nil, err
	}
	return far.RoundTrip(r)
}

// upstream returns the connection, made anew where the last one takes no more
// requests. The caller has to send a request on it.
func (v *h2Visit) upstream(ctx context.Context) (*http2.ClientConn, error) {
	v.dialling.Lock()
	defer v.dialling.Unlock()
	if v.far != nil && v.far.ReserveNewRequest() {
		return v.far, nil
	}
	if v.ended() {
		return nil, context.Canceled
	}
	far, err := v.again(ctx)
	if err != nil {
		return nil, err
	}
	v.retire()
	if v.speak(far) != nil || !v.far.ReserveNewRequest() {
		return nil, v.flow.Failed(policy.NetworkTLS, "")
	}
	return v.far, nil
}

// retire puts the connection aside: streams that began on it may end there.
func (v *h2Visit) retire() {
	v.old = slices.DeleteFunc(append(v.old, v.far), func(cc *http2.ClientConn) bool {
		return cc == nil || cc.State().Closed
	})
	v.far = nil
}

func (v *h2Visit) ended() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.over
}

// received has the response's head and body pass without what is reserved to
// egressd and without the credential.
func (v *h2Visit) received(resp *http.Response) error {
	st := resp.Request.Context().Value(streamKey{}).(*stream)
	st.end.Status = resp.StatusCode
	var strike *striker
	if st.secret != nil {
		if !plainCoding(resp.Header["Content-Encoding"]) {
			return st.flow.Failed(policy.ResponseRefused, "")
		}
		strike = newStriker(st.secret, &st.end)
	}
	strike.header(resp.Header)
	resp.Body = &struckBody{ReadCloser: resp.Body, strike: strike, resp: resp}
	return nil
}

// failed answers for an upstream that did not.
func (v *h2Visit) failed(w http.ResponseWriter, r *http.Request, err error) {
	st := r.Context().Value(streamKey{}).(*stream)
	var refusal *egress.Refusal
	switch {
	case errors.As(err, &refusal):
	case r.Context().Err() != nil: // the client has left, or the policy has cut the stream
		panic(http.ErrAbortHandler)
	case v.asked.Load():
		refusal = st.flow.Failed(policy.NetworkTLS, wantsCertificate)
	default:
		refusal = st.flow.Failed(policy.NetworkTLS, "")
	}
	st.end.Outcome = string(refusal.Decision.Class)
	v.refuse(w, r, refusal)
}

func (v *h2Visit) refuse(w http.ResponseWriter, r *http.Request, refusal *egress.Refusal) {
	a := answerInside(refusal.Decision.Class)
	fields, body := replyParts(refusal, a, reader{agent: r.UserAgent(), accept: r.Header.Get("Accept")})
	for _, f := range fields {
		w.Header().Set(f.Name, f.Value)
	}
	w.WriteHeader(a.status)
	w.Write(body)
}

// Get and Put implement [httputil.BufferPool].
func (v *h2Visit) Get() []byte { return v.server.buffers.Get().(*[bodyBuffer]byte)[:] }

func (v *h2Visit) Put(b []byte) {
	if len(b) == bodyBuffer {
		v.server.buffers.Put((*[bodyBuffer]byte)(b))
	}
}
