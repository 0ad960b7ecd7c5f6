package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
)

// What an upstream may send before a client takes it: it is held in memory, and
// less where the sandbox has many connections. Streams that nobody reads share the
// connection's part, so that is more than a few of them can use up.
const (
	downloadBuffer  = 8 << 20
	downloadStreams = 16 // that use it up
)

// speak begins HTTP/2 with the upstream.
func (v *h2Conn) startUpstream(upstream *tls.Conn) error {
	// A transport has no fields of its own for what it takes unread. One that
	// is made in this way cannot dial.
	held := v.inspector.h2Memory.reserve(v.flow.Sandbox())
	window := int(held.growFair(downloadBuffer, leastWindow))
	t, err := http2.ConfigureTransports(&http.Transport{HTTP2: &http.HTTP2Config{
		MaxReceiveBufferPerConnection: window,
		MaxReceiveBufferPerStream:     max(window/downloadStreams, frameMost),
	}})
	if err != nil {
		held.release()
		return err
	}
	t.DisableCompression = true
	t.MaxHeaderListSize = uint32(v.server.limits.HeadBytes)
	t.MaxDecoderHeaderTableSize = dynamicTable
	t.MaxReadFrameSize = frameMost
	t.WriteByteTimeout = v.server.limits.Idle
	t.StrictMaxConcurrentStreams = true
	v.window = held
	empty := newEmptyFrameLimit(true)
	empty.to = preface
	v.conn, err = t.NewClientConn(&smallFrames{Conn: upstream, closed: sync.OnceFunc(held.release), empty: empty})
	return err
}

// RoundTrip implements [http.RoundTripper] on the tunnel's one upstream. A
// request that may be sent twice is, where the upstream was about to close the
// connection that it went to.
func (v *h2Conn) RoundTrip(r *http.Request) (*http.Response, error) {
	conn, err := v.reserveUpstream(r.Context())
	if err != nil {
		return nil, err
	}
	reused := v.answered.Load()
	resp, err := conn.RoundTrip(r)
	if err == nil {
		v.answered.Store(true)
		return resp, nil
	}
	if !reused || r.Body != nil || !idempotent(r.Method) || r.Context().Err() != nil || conn.CanTakeNewRequest() {
		return nil, err
	}
	if conn, err = v.reserveUpstream(r.Context()); err != nil {
		return nil, err
	}
	return conn.RoundTrip(r)
}

// upstream returns the connection, made anew where the last one takes no more
// requests. The caller has to send a request on it.
func (v *h2Conn) reserveUpstream(ctx context.Context) (*http2.ClientConn, error) {
	select {
	case v.dialling <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-v.dialling }()
	st := ctx.Value(streamKey{}).(*stream)
	defer st.flow.Over(v.flow)
	if v.conn != nil && v.conn.ReserveNewRequest() && st.holdWindow(v.window) {
		return v.conn, nil
	}
	if v.hasEnded() {
		return nil, context.Canceled
	}
	upstream, err := v.redial(ctx)
	if err != nil {
		return nil, err
	}
	v.retire()
	if v.startUpstream(upstream) != nil || !v.conn.ReserveNewRequest() || !st.holdWindow(v.window) {
		return nil, v.flow.Failed(policy.NetworkTLS, "")
	}
	return v.conn, nil
}

// goesOver notes the windows of the connection that a stream uses. What came on it is held
// until the stream ends, also when the connection has. Where that has closed meanwhile, it
// reports that the stream cannot go over it.
func (st *stream) holdWindow(windows *reservation) bool {
	if !windows.retain() {
		return false
	}
	st.window.release()
	st.window = windows
	return true
}

// oldMost bounds the connections of one tunnel that take no more requests.
const oldMost = 4

// retire puts the connection aside: streams that began on it may end there,
// unless there are more such connections than are kept.
func (v *h2Conn) retire() {
	if v.conn != nil {
		v.conn.SetDoNotReuse() // the library closes it when its last stream has ended
		v.retired = append(v.retired, v.conn)
	}
	v.conn = nil
	v.closeIdle()
	for len(v.retired) > oldMost {
		v.retired[0].Close()
		v.retired = slices.Delete(v.retired, 0, 1)
	}
}

// closeIdle closes connections that take no more requests and have none. An
// upstream that has said so may keep them open for as long as it likes.
func (v *h2Conn) closeIdle() {
	v.retired = slices.DeleteFunc(v.retired, func(cc *http2.ClientConn) bool {
		state := cc.State()
		idle := state.StreamsActive+state.StreamsPending+state.StreamsReserved == 0
		if idle && !state.Closed {
			cc.Close()
		}
		return idle || state.Closed
	})
}

// streamEnded is called after each stream. Where a connection is being made,
// that looks for idle ones by itself.
func (v *h2Conn) streamEnded() {
	select {
	case v.dialling <- struct{}{}:
		v.closeIdle()
		<-v.dialling
	default:
	}
}

// hangUp closes every connection to the upstream, once nobody makes one.
func (v *h2Conn) closeUpstreams() {
	v.closeUpstream() // also ends a handshake under way
	v.dialling <- struct{}{}
	defer func() { <-v.dialling }()
	for _, conn := range append(v.retired, v.conn) {
		if conn != nil {
			conn.Close()
		}
	}
}
