package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
)

// Bounds of one inspected HTTP/2 connection. What carries nothing has its own, see emptyFrames.
const (
	streamsMost   = 128
	frameMost     = 16 << 10
	malformedMost = 64      // records of what could not be read; then the connection ends
	uploadBuffer  = 1 << 20 // or less: see room
	dynamicTable  = 4 << 10
	leastWindow   = 64 << 10 // of a connection, in each direction
)

// An h2Visit is one client that speaks HTTP/2 in an inspected tunnel. Each of
// its streams is decided on its own and goes to the one upstream of the tunnel.
type h2Conn struct {
	*tunnel
	forward  *httputil.ReverseProxy
	answered atomic.Bool // the upstream has answered a request

	dialling chan struct{}       // has room for one, who may touch what follows, also while a connection is made
	conn     *http2.ClientConn   // to the upstream
	retired  []*http2.ClientConn // that take no more requests, and may not be through with all they had
	window   *reservation        // of conn

	state     sync.Mutex // guards what follows
	malformed int
	ended     bool
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
func (i *tunnel) serveH2(client, upstream *tls.Conn) {
	limits := i.server.limits
	v := &h2Conn{tunnel: i, dialling: make(chan struct{}, 1)}
	v.forward = &httputil.ReverseProxy{
		Rewrite:        v.rewrite,
		Transport:      v,
		FlushInterval:  -1, // each part as soon as it is there
		ModifyResponse: v.received,
		ErrorHandler:   v.failed,
		ErrorLog:       log.New(io.Discard, "", 0),
		BufferPool:     v,
	}
	if upstream != nil && v.startUpstream(upstream) != nil {
		i.broken = i.flow.Failed(policy.NetworkTLS, "")
	}
	held := i.inspector.h2Memory.reserve(i.flow.Sandbox())
	defer held.release()
	window := int32(held.growFair(uploadBuffer, leastWindow))
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
	watched := watchHeads(client, limits.HeadBytes, v.countMalformed)
	watched.patience = newCountdown(limits.Head, v.headLate)
	defer watched.patience.end()
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

// end waits for the streams whose connection is gone.
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

// unreadable records what the library refused before it was a request.
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
		v.server.Gate.Refuse(v.peer, v.via, nil, policy.MalformedRequest, "HTTP/2: "+strings.ReplaceAll(kind, "_", " "))
	case n == malformedMost:
		v.breakOff(string(policy.MalformedRequest))
	}
}

// headLate ends a connection on which a head was begun and not completed.
func (v *h2Conn) headLate() {
	if !v.enter() {
		return
	}
	defer v.running.Done()
	v.countMalformed(errHeadLate.Error())
	v.breakOff(string(policy.MalformedRequest))
}

// explain records that the library ended the connection for what the client
// sent, where nothing else says so.
func (v *h2Conn) recordComplaint() {
	v.state.Lock()
	n := v.malformed
	v.state.Unlock()
	if n == 0 && v.complaints.Load() > 0 {
		v.countMalformed("what the client sent breaks its rules")
	}
}

// Get and Put implement [httputil.BufferPool].
func (v *h2Conn) Get() []byte { return v.server.buffers.Get().(*[bodyBuffer]byte)[:] }

func (v *h2Conn) Put(b []byte) {
	if len(b) == bodyBuffer {
		v.server.buffers.Put((*[bodyBuffer]byte)(b))
	}
}
