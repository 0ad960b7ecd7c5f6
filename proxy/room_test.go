package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

func TestARoomIsSharedOut(t *testing.T) {
	r := memoryQuota{most: 100}
	a, b, other := r.reserve("a"), r.reserve("a"), r.reserve("b")
	if n := a.growFair(10, 1); n != 10 {
		t.Errorf("of 100 and at most 10: %d", n)
	}
	if n := b.growFair(50, 1); n != 11 {
		t.Errorf("an eighth of 90: %d", n)
	}
	if c := r.reserve("a"); !c.grow(79) || c.grow(1) {
		t.Error("of 79 that were left, 80 could be taken, or not 79")
	}
	if n := r.reserve("a").growFair(50, 5); n != 5 {
		t.Errorf("the least, where there is nothing: %d", n)
	}
	if !other.grow(100) {
		t.Error("what one sandbox takes, another has not")
	}
	a.retain()
	a.release()
	if n := r.held["a"]; n != 105 {
		t.Errorf("%d are held with one user left", n)
	}
	a.release()
	b.release()
	if n := r.held["a"]; n != 84 {
		t.Errorf("%d are held, want 84", n)
	}
	other.clear()
	if !other.grow(1) {
		t.Error("what was freed cannot be taken again")
	}
	if other.release(); other.grow(1) {
		t.Error("a lease that has ended takes more")
	}
	if a.retain() || a.users != 0 {
		t.Error("a lease that has ended is shared")
	}
	st := stream{window: r.reserve("b")}
	if b := st.window; st.holdWindow(a) || st.window != b || b.users != 1 {
		t.Error("a stream goes over a connection that has closed")
	}
	if _, known := r.held["b"]; known {
		t.Error("a sandbox that holds nothing is not forgotten")
	}
}

// TestHowManyTunnelsHaveAll is what the manual says of windows.
func TestHowManyTunnelsHaveAll(t *testing.T) {
	r := memoryQuota{most: h2MemoryOfSandbox}
	full := 0
	for r.reserve("a").growFair(downloadBuffer, leastWindow) == downloadBuffer && r.reserve("a").growFair(uploadBuffer, leastWindow) == uploadBuffer {
		full++
	}
	if full != 22 {
		t.Errorf("%d tunnels have all", full)
	}
}

// narrow leaves one sandbox so much.
func (r *memoryQuota) narrow(most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = most
}

func (r *memoryQuota) empty(t *testing.T, what string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		held := fmt.Sprint(r.held)
		r.mu.Unlock()
		switch {
		case held == "map[]":
			return
		case time.Now().After(deadline):
			t.Fatalf("%s: %s is held still", what, held)
		}
	}
}

// offers reads what the other end of a connection says that it takes unread: of one stream
// and, where that is asked for, over all beyond the first 64 KiB.
func offers(f *http2.Framer, both bool) (all, one uint32) {
	for one == 0 || both && all == 0 {
		frame, err := f.ReadFrame()
		if err != nil {
			return all, one
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if n, ok := frame.Value(http2.SettingInitialWindowSize); ok {
				one = n
			}
		case *http2.WindowUpdateFrame:
			if frame.StreamID == 0 {
				all = frame.Increment
			}
		}
	}
	return all, one
}

// TestWindowsBecomeSmall as a sandbox has more connections: what nobody reads is held for
// it, in both directions.
func TestWindowsBecomeSmall(t *testing.T) {
	w := newInsideWorld(t, insidePolicy, nil)
	const most = 4 << 20
	w.inspector.h2Memory.narrow(most)
	type pair struct{ all, one uint32 }
	offered := make(chan pair, 1)
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		f := serveFrames(c)
		all, one := offers(f.Framer, true)
		offered <- pair{all, one}
		io.Copy(io.Discard, f.reader())
	}, "h2")
	var sum uint32
	var tunnels []net.Conn
	const count = 40
	for n := range count {
		tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
		tunnels = append(tunnels, tunnel)
		s := startSpeaking(t, tunnel)
		_, up := offers(s.in, false)
		down := <-offered
		sum += down.all + up
		if n == 0 && (down.all < 400<<10 || up < 200<<10) {
			t.Errorf("the first may be sent %d, and %d of one stream the other way", down.all, up)
		}
		if n == count-1 && (down.all != leastWindow || down.one != frameMost || up != leastWindow/2) {
			t.Errorf("the last may be sent %d, %d of one stream, and %d of one the other way", down.all, down.one, up)
		}
	}
	if sum > most+2*count*leastWindow {
		t.Errorf("all together may be sent %d", sum)
	}
	for _, c := range tunnels {
		c.(interface{ NetConn() net.Conn }).NetConn().Close()
	}
	w.inspector.h2Memory.empty(t, "after their end")
}

// reader is what there is still to be read.
func (f *frames) reader() io.Reader { return framesReader{f} }

type framesReader struct{ *frames }

func (r framesReader) Read([]byte) (int, error) {
	_, err := r.ReadFrame()
	return 0, err
}

// TestWindowsOfOldConnections are held for as long as one of their streams lasts, also
// where the upstream has gone.
func TestWindowsOfOldConnections(t *testing.T) {
	w := newInsideWorld(t, insidePolicy, nil)
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		f := serveFrames(c)
		id := f.request()
		f.respond(id, strings.Repeat("x", 10<<10), true)
		f.WriteGoAway(id, http2.ErrCodeNo, nil)
		c.(*tls.Conn).CloseWrite()
		io.Copy(io.Discard, c) // or what has not been read there is lost with a reset
	}, "h2")
	tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
	s := startSpeaking(t, tunnel, http2.Setting{ID: http2.SettingInitialWindowSize})
	const streams = 3
	for n := range streams {
		s.get(t, o, fmt.Sprint("/public/", n))
		s.until(t, func(f http2.Frame) bool { _, ok := f.(*http2.HeadersFrame); return ok })
	}
	w.inspector.h2Memory.mu.Lock()
	held := w.inspector.h2Memory.held[w.windowsOf()]
	w.inspector.h2Memory.mu.Unlock()
	if held < streams*downloadBuffer {
		t.Errorf("%d bytes are held for %d connections of which one stream is not through", held, streams)
	}
	tunnel.NetConn().Close()
	w.closed(t)
	w.inspector.h2Memory.empty(t, "after their end")
}

// windowsOf is the one sandbox that has windows.
func (w *insideWorld) windowsOf() string {
	for name := range w.inspector.h2Memory.held {
		return name
	}
	return ""
}

// TestWhatIsHeldBackIsBounded: compressed bodies that do not come to their end are held
// until they were searched.
func TestWhatIsHeldBackIsBounded(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInsideWorld(t, canaryPolicy, nil)
		guarded(t, w)
		const part = 300 << 10
		w.shared.bodyMemory.narrow(2*part + part/2)
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, nil)
		var sending sync.WaitGroup
		post := func() (finish func(), answer chan reply) {
			r, send := io.Pipe()
			answer = make(chan reply, 1)
			rt := w.visitor(t, overH2, "allowed.test", o.port)
			sending.Go(func() {
				answer <- ask(t, rt, "POST", o.url("allowed.test", "/up"), r, "Content-Encoding: gzip")
				r.Close()
			})
			send.Write(make([]byte, part))
			return func() { send.Close() }, answer
		}
		finishFirst, first := post()
		finishSecond, second := post()
		w.shared.bodyMemory.holds(t, 2*part)
		finishThird, third := post()
		(<-third).refused(t, 429, policy.TooManyFlows)
		w.recorded(t, ended(string(policy.TooManyFlows)))
		finishThird()
		finishFirst()
		if r := <-first; r.StatusCode != 200 {
			t.Error(r.all())
		}
		w.shared.bodyMemory.holds(t, part)
		finishFourth, fourth := post()
		w.shared.bodyMemory.holds(t, 2*part)
		finishSecond()
		finishFourth()
		for _, answer := range []chan reply{second, fourth} {
			if r := <-answer; r.StatusCode != 200 {
				t.Error(r.all())
			}
		}
		sending.Wait()
		w.shared.bodyMemory.empty(t, "after their end")
		if n := w.count(t, func(r record.Record) bool { return r.Outcome == string(policy.TooManyFlows) }); n != 1 {
			t.Errorf("%d were refused, want one", n)
		}
	})
}

// holds waits until one sandbox holds so much, and all others nothing.
func (r *memoryQuota) holds(t *testing.T, want int64) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		sum := int64(0)
		r.mu.Lock()
		for _, n := range r.held {
			sum += n
		}
		r.mu.Unlock()
		switch {
		case sum == want:
			return
		case time.Now().After(deadline):
			t.Fatalf("%d are held, want %d", sum, want)
		}
	}
}

// TestALongBodyIsHeldBackNoLonger once it goes on unsearched, or was searched.
func TestALongBodyIsHeldBackNoLonger(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInsideWorld(t, canaryPolicy, nil)
		guarded(t, w)
		arrived := make(chan struct{})
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			io.CopyN(io.Discard, r.Body, compressedMost)
			close(arrived)
			io.Copy(io.Discard, r.Body)
		}, nil)
		r, send := io.Pipe()
		answer := make(chan reply, 1)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		go func() { answer <- ask(t, rt, "POST", o.url("allowed.test", "/up"), r, "Content-Encoding: gzip") }()
		send.Write(make([]byte, compressedMost+64<<10))
		soon(t, "the body", arrived)
		w.shared.bodyMemory.holds(t, 0)
		send.Close()
		if r := <-answer; r.StatusCode != 200 {
			t.Error(r.all())
		}
	})
}
