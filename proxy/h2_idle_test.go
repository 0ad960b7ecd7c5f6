package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"net"
	"net/http"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// TestAConnectionWithAnOpenStreamLeavesNothingBehind: the memory of an HTTP/2 connection is
// free once its client has left, although limits.idle_timeout is 10 minutes.
func TestAConnectionWithAnOpenStreamLeavesNothingBehind(t *testing.T) {
	w := newInsideWorld(t, insidePolicy, nil)
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
	w.inspector.h2Memory.mu.Lock()
	if n := len(w.inspector.h2Memory.held); n != 0 {
		t.Errorf("memory is still counted for %d sandboxes", n)
	}
	w.inspector.h2Memory.mu.Unlock()
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
	for c := range w.clients {
		tcp, ok := c.(*net.TCPConn)
		if !ok || len(w.clients) != 1 {
			t.Fatalf("%d connections, one is a %v", len(w.clients), reflect.TypeOf(c))
		}
		runtime.AddCleanup(tcp, func(done chan struct{}) { close(done) }, freed)
	}
	return freed
}

// TestAnIdleConnectionIsToldToLeave and is closed. One with an open stream is not idle.
func TestAnIdleConnectionIsToldToLeave(t *testing.T) {
	t.Parallel()
	w := newLimitedWorld(t, insidePolicy, Limits{Idle: time.Second}, nil)
	o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, r *http.Request) {
		pace := time.NewTicker(100 * time.Millisecond)
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

// TestACountdownDoesNotBeginAfterItsEnd, so that nothing that it calls stays in memory.
func TestACountdownDoesNotBeginAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		c := newCountdown(time.Second, func() { calls.Add(1) })
		after := func(d time.Duration) int32 {
			time.Sleep(d)
			synctest.Wait()
			return calls.Load()
		}
		if after(time.Minute) != 0 {
			t.Error("it ran before it began")
		}
		c.begin()
		after(999 * time.Millisecond)
		c.stop()
		if after(time.Minute) != 0 {
			t.Error("it ran out although it was stopped")
		}
		c.begin()
		if after(time.Minute) != 1 {
			t.Error("it did not run out")
		}
		c.begin()
		c.end()
		c.begin()
		if after(time.Minute) != 1 {
			t.Error("it ran out after its end")
		}
	})
}
