package inspect

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
)

// Bounds of one inspected HTTP/2 connection. emptyFrameLimit bounds frames that carry nothing.
const (
	streamsMost   = 128
	frameMost     = 16 << 10
	malformedMost = 64        // records of what could not be read; then the connection ends
	uploadBuffer  = 128 << 10 // at most, and half of it for a stream: see serveH2
	dynamicTable  = 4 << 10
	leastWindow   = 64 << 10 // of a connection, in each direction
)

// h2MemoryOfSandbox is how many bytes the windows of one sandbox's connections may have. Beyond it, a connection
// gets leastWindow.
const h2MemoryOfSandbox = 256 << 20

// An h2Conn is one client connection that speaks HTTP/2 in an inspected tunnel. The policy decides each
// stream. All streams go to the tunnel's one upstream.
type h2Conn struct {
	*tunnel
	answered atomic.Bool // the upstream has answered a request

	dialling chan struct{}       // of capacity 1; its holder may use the next three fields, also while it dials
	conn     *http2.ClientConn   // to the upstream
	retired  []*http2.ClientConn // that take no more requests, and may not be through with all they had
	window   *fair.Reservation   // of conn

	state     sync.Mutex // guards what follows
	malformed int
	ended     bool
	running   sync.WaitGroup

	complaints complaints
}

// complaints counts the connection errors that the HTTP/2 library logs for what the client sent: CountError
// misses some of them. Other messages of the library, such as that a client has left, do not count.
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

// serveH2 serves streams until the client's connection ends. upstream is nil if
// the connection to it failed.
func (i *tunnel) serveH2(client, upstream *tls.Conn) {
	limits := i.Forwarder.Limits
	v := &h2Conn{tunnel: i, dialling: make(chan struct{}, 1)}
	if upstream != nil && v.startUpstream(upstream) != nil {
		i.broken = i.flow.Failed(policy.NetworkReset, "")
	}
	held := i.inspector.H2Memory.Reserve(i.flow.Holder(), i.flow.Sandbox())
	defer held.Release()
	// A stream's window stays below what the client's socket takes: libcurl 7.88.1, of Debian 12, sends
	// a block of an upload twice when a write would block.
	window := int32(held.GrowFair(uploadBuffer, leastWindow))
	h2s := &http2.Server{
		MaxConcurrentStreams:         streamsMost,
		MaxReadFrameSize:             frameMost,
		MaxDecoderHeaderTableSize:    dynamicTable,
		WriteByteTimeout:             limits.Idle,
		MaxUploadBufferPerConnection: window,
		MaxUploadBufferPerStream:     window / 2,
		CountError:                   v.countMalformed,
	}
	base := &http.Server{MaxHeaderBytes: limits.HeadBytes, ErrorLog: log.New(&v.complaints, "", 0)}
	idle := endIdle(h2s, base, limits.Idle)
	defer idle.end()
	patience := newCountdown(limits.Head, v.headLate)
	defer patience.end()
	watched := tapClient(client, limits.HeadBytes, patience, v.countMalformed)
	h2s.ServeConn(watched, &http2.ServeConnOpts{Handler: v, BaseConfig: base})
	v.wait()
	if watched.greeted.Load() { // and has not just left
		v.recordComplaint()
	}
}

// endIdle returns a countdown that closes the connection with a GOAWAY after d without an open
// stream. The library's IdleTimeout is not used: its timer starts again while the connection
// closes, and then keeps the connection in memory.
func endIdle(h2s *http2.Server, base *http.Server, d time.Duration) *countdown {
	http2.ConfigureServer(base, h2s) // it has Shutdown end what h2s serves, and fails for cipher suites alone
	idle := newCountdown(d, func() { base.Shutdown(context.Background()) })
	base.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateIdle {
			idle.begin()
		} else {
			idle.stop()
		}
	}
	return idle
}

// wait waits for the streams whose connection is gone.
func (v *h2Conn) wait() {
	v.state.Lock()
	v.ended = true
	v.state.Unlock()
	v.closeUpstreams()
	v.running.Wait()
}

func (v *h2Conn) enter() bool {
	v.state.Lock()
	defer v.state.Unlock()
	if !v.ended {
		v.running.Add(1)
	}
	return !v.ended
}

func (v *h2Conn) hasEnded() bool {
	v.state.Lock()
	defer v.state.Unlock()
	return v.ended
}

// lateData is how the library counts a frame of a body whose stream it has
// ended: what a client had sent before it knew.
const lateData = "stream_STREAM_CLOSED_closed"

// countMalformed records what the library refused before it was a request.
func (v *h2Conn) countMalformed(kind string) {
	if kind == lateData {
		return
	}
	v.state.Lock()
	v.malformed++
	n := v.malformed
	v.state.Unlock()
	switch {
	case n < malformedMost:
		v.Forwarder.Gate.Refuse(v.Peer, v.Via, nil, policy.MalformedRequest, "HTTP/2: "+strings.ReplaceAll(kind, "_", " "))
	case n == malformedMost:
		v.breakOff(record.Outcome(policy.MalformedRequest))
	}
}

// headLate ends a connection on which a head was begun and not completed.
func (v *h2Conn) headLate() {
	if !v.enter() {
		return
	}
	defer v.running.Done()
	v.countMalformed(exchange.ErrHeadLate.Error())
	v.breakOff(record.Outcome(policy.MalformedRequest))
}

// recordComplaint records that the library ended the connection for what the client
// sent, where nothing else says so.
func (v *h2Conn) recordComplaint() {
	v.state.Lock()
	n := v.malformed
	v.state.Unlock()
	if n == 0 && v.complaints.Load() > 0 {
		v.countMalformed("what the client sent breaks its rules")
	}
}

// Bytes that an upstream may send before the client takes them. They are held in memory; a sandbox with many
// connections gets less. Unread streams share the connection's window, which therefore has room for more than
// a few of them.
const (
	downloadBuffer  = 8 << 20
	downloadStreams = 16 // that use it up
)

// startUpstream begins HTTP/2 with the upstream.
func (v *h2Conn) startUpstream(upstream net.Conn) error {
	// A transport has no fields of its own for what it takes unread. One that
	// is made in this way cannot dial.
	held := v.inspector.H2Memory.Reserve(v.flow.Holder(), v.flow.Sandbox())
	window := int(held.GrowFair(downloadBuffer, leastWindow))
	t, err := http2.ConfigureTransports(&http.Transport{ExpectContinueTimeout: exchange.ExpectPatience, HTTP2: &http.HTTP2Config{
		MaxReceiveBufferPerConnection: window,
		MaxReceiveBufferPerStream:     max(window/downloadStreams, frameMost),
	}})
	if err != nil {
		held.Release()
		return err
	}
	t.DisableCompression = true
	t.MaxHeaderListSize = uint32(v.Forwarder.Limits.ResponseHeadBytes + fieldOverhead*v.Forwarder.Limits.ResponseFields)
	t.MaxDecoderHeaderTableSize = dynamicTable
	t.MaxReadFrameSize = frameMost
	t.WriteByteTimeout = v.Forwarder.Limits.Idle
	t.StrictMaxConcurrentStreams = true
	v.window = held
	v.conn, err = t.NewClientConn(tapUpstream(upstream.(*tls.Conn), sync.OnceFunc(held.Release)))
	return err
}

// lockUpstream waits until nobody else makes a connection to the upstream.
func (v *h2Conn) lockUpstream(ctx context.Context) error {
	select {
	case v.dialling <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (v *h2Conn) unlockUpstream() { <-v.dialling }

// holdWindow keeps the window memory of the stream's connection reserved until the stream ends, even if the
// connection closes before. It returns false if the connection has closed already; the stream cannot use it
// then.
func (st *stream) holdWindow(windows *fair.Reservation) bool {
	if !windows.Retain() {
		return false
	}
	st.window.Release()
	st.window = windows
	return true
}

// oldMost bounds the connections of one tunnel that take no more requests.
const oldMost = 4

// retire puts the connection aside. Its streams may finish there, unless more than oldMost connections are
// retired.
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

// closeIdle closes retired connections without streams. An upstream that has sent GOAWAY may otherwise keep
// them open for any time.
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

// closeUpstreams closes every connection to the upstream, once nobody makes one.
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
