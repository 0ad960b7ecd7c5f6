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

	"golang.org/x/net/http2"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

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
	w := newInspectWorld(t, inspectPolicy, nil)
	const most = 4 << 20
	w.inspector.H2Memory.SetMost(most)
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
		if n == 0 && (down.all < 400<<10 || up != 64<<10) { // more up, and libcurl 7.88.1 doubles blocks of uploads
			t.Errorf("the first may be sent %d, and %d of one stream the other way", down.all, up)
		}
		if n == count-1 && (down.all != 64<<10 || down.one != 16<<10 || up != 32<<10) {
			t.Errorf("the last may be sent %d, %d of one stream, and %d of one the other way", down.all, down.one, up)
		}
	}
	if sum > most+2*count*64<<10 {
		t.Errorf("all together may be sent %d", sum)
	}
	for _, c := range tunnels {
		c.(interface{ NetConn() net.Conn }).NetConn().Close()
	}
	empty(t, &w.inspector.H2Memory, "after their end")
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
	w := newInspectWorld(t, inspectPolicy, nil)
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
	held, _ := w.inspector.H2Memory.Held()
	if held < streams*(8<<20) {
		t.Errorf("%d bytes are held for %d connections of which one stream is not through", held, streams)
	}
	tunnel.NetConn().Close()
	w.closed(t)
	empty(t, &w.inspector.H2Memory, "after their end")
}

// TestWhatIsHeldBackIsBounded: compressed bodies that do not come to their end are held
// until they were searched.
func TestWhatIsHeldBackIsBounded(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, canaryPolicy, nil)
		guarded(t, w)
		const part = 300 << 10
		w.forwarder.BodyMemory.SetMost(2*part + part/2)
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
		holds(t, &w.forwarder.BodyMemory, 2*part)
		finishThird, third := post()
		(<-third).refused(t, 429, policy.TooManyFlows)
		w.recorded(t, ended(string(policy.TooManyFlows)))
		finishThird()
		finishFirst()
		if r := <-first; r.StatusCode != 200 {
			t.Error(r.all())
		}
		holds(t, &w.forwarder.BodyMemory, part)
		finishFourth, fourth := post()
		holds(t, &w.forwarder.BodyMemory, 2*part)
		finishSecond()
		finishFourth()
		for _, answer := range []chan reply{second, fourth} {
			if r := <-answer; r.StatusCode != 200 {
				t.Error(r.all())
			}
		}
		sending.Wait()
		empty(t, &w.forwarder.BodyMemory, "after their end")
		if n := w.count(t, func(r record.Record) bool { return r.Outcome == record.Outcome(policy.TooManyFlows) }); n != 1 {
			t.Errorf("%d were refused, want one", n)
		}
	})
}

// TestALongBodyIsHeldBackNoLonger once it goes on unsearched, or was searched.
func TestALongBodyIsHeldBackNoLonger(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, canaryPolicy, nil)
		guarded(t, w)
		arrived := make(chan struct{})
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			io.CopyN(io.Discard, r.Body, 1<<20)
			close(arrived)
			io.Copy(io.Discard, r.Body)
		}, nil)
		r, send := io.Pipe()
		answer := make(chan reply, 1)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		go func() { answer <- ask(t, rt, "POST", o.url("allowed.test", "/up"), r, "Content-Encoding: gzip") }()
		send.Write(make([]byte, 1<<20+64<<10))
		soon(t, "the body", arrived)
		holds(t, &w.forwarder.BodyMemory, 0)
		send.Close()
		if r := <-answer; r.StatusCode != 200 {
			t.Error(r.all())
		}
	})
}
