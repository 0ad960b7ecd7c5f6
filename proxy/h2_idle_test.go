package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"net"
	"net/http"
	"reflect"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestAConnectionWithAnOpenStreamLeavesNothingBehind: the memory of an HTTP/2 connection is
// free once its client has left, although limits.idle_timeout is 10 minutes.
func TestAConnectionWithAnOpenStreamLeavesNothingBehind(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(200)
		rw.(http.Flusher).Flush()
		<-r.Context().Done()
	}, nil)
	c := w.tunnel(t, "allowed.test", o.port, "h2")
	s := startSpeaking(t, c)
	s.get(t, o, "/public/x")
	s.until(t, func(f http2.Frame) bool { return f.Header().Type == http2.FrameHeaders })
	freed := w.whenFreed(t)
	c.NetConn().Close()
	w.closed(t)
	if _, n := w.inspector.H2Memory.Held(); n != 0 {
		t.Errorf("memory is still counted for %d sandboxes", n)
	}
	for deadline := time.After(10 * time.Second); ; runtime.GC() {
		select {
		case <-freed:
			return
		case <-deadline:
			t.Fatal("what the connection held is still there")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// whenFreed returns a channel that is closed once nothing refers to the one connection that
// a goroutine serves.
func (w *world) whenFreed(t *testing.T) <-chan struct{} {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	freed := make(chan struct{})
	for c := range w.conns {
		tcp, ok := c.Raw.(*net.TCPConn)
		if !ok || len(w.conns) != 1 {
			t.Fatalf("%d connections, one is a %v", len(w.conns), reflect.TypeOf(c.Raw))
		}
		runtime.AddCleanup(tcp, func(done chan struct{}) { close(done) }, freed)
	}
	return freed
}

// TestAnIdleConnectionIsToldToLeave and is closed. One with an open stream is not idle.
func TestAnIdleConnectionIsToldToLeave(t *testing.T) {
	t.Parallel()
	w := newLimitedWorld(t, inspectPolicy, Limits{Idle: 2 * time.Second}, nil)
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, r *http.Request) {
		pace := time.NewTicker(200 * time.Millisecond)
		defer pace.Stop()
		for range 15 {
			rw.Write([]byte("x"))
			rw.(http.Flusher).Flush()
			<-pace.C
		}
	}, nil)
	s := startSpeaking(t, w.tunnel(t, "allowed.test", o.port, "h2"))
	s.get(t, o, "/public/x")
	var whole bool
	s.until(t, func(f http2.Frame) bool {
		if data, ok := f.(*http2.DataFrame); ok {
			whole = whole || data.StreamEnded()
		}
		goodbye, ok := f.(*http2.GoAwayFrame)
		return ok && goodbye.ErrCode == http2.ErrCodeNo
	})
	if !whole {
		t.Error("the connection was idle while a stream was open")
	}
	w.closed(t)
}
