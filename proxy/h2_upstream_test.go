package proxy

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
	"golang.org/x/net/http2"
)

// TestAnUpstreamMayNotSendMuch unread: what windows it is given, as it learns
// of them before the first request.
func TestAnUpstreamMayNotSendMuch(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	type windows struct{ stream, connection uint32 }
	given := make(chan windows, 1)
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
		f := &frames{http2.NewFramer(c, c)}
		f.WriteSettings()
		got := windows{65535, 65535} // RFC 9113 §6.9.2
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if n, ok := frame.Value(http2.SettingInitialWindowSize); ok {
					got.stream = n
				}
			case *http2.WindowUpdateFrame:
				got.connection += frame.Increment
			case *http2.HeadersFrame:
				given <- got
				f.respond(frame.StreamID, "fine", true)
			}
		}
	}, "h2")
	if r := ask(t, w.visitor(t, true, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/x"), nil); r.body != "fine" {
		t.Fatal(r.all())
	}
	if got := <-given; got.stream > 512<<10 || got.connection > 9<<20 || got.connection < 4*got.stream {
		t.Errorf("an upstream may send %d KiB on a stream and %d KiB on all", got.stream>>10, got.connection>>10)
	}
}

// TestARefusedRedialIsTheRequests: the answer to a request whose upstream could
// not be had again carries the id of the request's records.
func TestARefusedRedialIsTheRequests(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	left := make(chan struct{})
	config := &tls.Config{Certificates: []tls.Certificate{w.pki.Server(t, nil, testNames...)}, NextProtos: []string{"h2"}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	go func() {
		defer close(left)
		c, err := l.Accept()
		if err != nil {
			return
		}
		l.Close()
		secure := tls.Server(c, config)
		defer secure.Close()
		if secure.Handshake() != nil {
			return
		}
		f := serveFrames(secure)
		id := f.request()
		f.WriteGoAway(id, http2.ErrCodeNo, nil)
		f.respond(id, "fine", true)
		f.request()
	}()
	t.Cleanup(func() { l.Close(); <-left })
	o := &origin{port: port}
	rt := w.visitor(t, true, "allowed.test", port)
	if r := ask(t, rt, "GET", o.url("allowed.test", "/public/one"), nil); r.body != "fine" {
		t.Fatal(r.all())
	}
	r := ask(t, rt, "GET", o.url("allowed.test", "/public/two"), nil)
	r.refused(t, 502, policy.NetworkRefused)
	asked := w.recorded(t, requestTo("/public/two"))
	if got := r.Header.Get("X-Egressd-Id"); got != asked.Flow || !strings.Contains(r.body, `"method":"GET"`) {
		t.Errorf("answered with the id %s of another flow than %s: %s", got, asked.Flow, r.body)
	}
	if end := w.recorded(t, closeOf(asked)); end.Outcome != record.Outcome(policy.NetworkRefused) {
		t.Errorf("ended %+v", end)
	}
}

// TestAStreamThatLeavesDuringARedial is no failure of the network, and waits
// for nobody: neither the one that dials, nor the one that waits for it.
func TestAStreamThatLeavesDuringARedial(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	config := &tls.Config{Certificates: []tls.Certificate{w.pki.Server(t, nil, testNames...)}, NextProtos: []string{"h2"}}
	conns := make(chan int, 8)
	conns <- 1
	o := newOrigin(t, func(c net.Conn) {
		n := <-conns
		conns <- n + 1
		if n > 1 { // a handshake that does not come about
			io.Copy(io.Discard, c)
			return
		}
		secure := tls.Server(c, config)
		if secure.Handshake() != nil {
			return
		}
		f := serveFrames(secure)
		id := f.request()
		f.WriteGoAway(id, http2.ErrCodeNo, nil)
		f.respond(id, "fine", true)
		f.request()
	})
	tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
	s := startSpeaking(t, tunnel)
	s.get(t, o, "/public/first")
	s.until(t, func(f http2.Frame) bool { d, ok := f.(*http2.DataFrame); return ok && d.StreamEnded() })
	dials, waits := s.get(t, o, "/public/dials"), s.get(t, o, "/public/waits")
	for _, path := range []string{"/public/dials", "/public/waits"} {
		w.recorded(t, requestTo(path))
	}
	for stream, path := range map[uint32]string{waits: "/public/waits", dials: "/public/dials"} {
		s.frames.WriteRSTStream(stream, http2.ErrCodeCancel)
		s.flush(t)
		if end := w.recorded(t, closeOf(w.recorded(t, requestTo(path)))); end.Outcome != "client-left" {
			t.Errorf("%s ended %+v", path, end)
		}
	}
	tunnel.NetConn().Close()
	w.closed(t)
}

// A speaking is a client of HTTP/2 that sends what it likes.
type speaking struct {
	*spoken
	conn net.Conn
	in   *http2.Framer
	last uint32
}

func startSpeaking(t *testing.T, c net.Conn, settings ...http2.Setting) *speaking {
	t.Helper()
	s := &speaking{newSpoken(), c, http2.NewFramer(nil, c), 0}
	if len(settings) > 0 {
		s.frames.WriteSettings(settings...)
	}
	s.flush(t)
	return s
}

func (s *speaking) flush(t *testing.T) {
	t.Helper()
	if _, err := s.conn.Write(s.Bytes()); err != nil {
		t.Fatal(err)
	}
	s.Reset()
}

// get asks for a path on a stream of its own.
func (s *speaking) get(t *testing.T, o *origin, path string) (stream uint32) {
	t.Helper()
	stream = s.last + 1
	s.last += 2
	block := s.encode(":method", "GET", ":scheme", "https", ":authority", "allowed.test:"+o.port, ":path", path)
	s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndHeaders: true, EndStream: true})
	s.flush(t)
	return stream
}

// until reads to a frame that fits.
func (s *speaking) until(t *testing.T, fits func(http2.Frame) bool) {
	t.Helper()
	for {
		frame, err := s.in.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if fits(frame) {
			return
		}
	}
}

// TestAFarewellIsNoMistake: a client that says GOAWAY, whatever for, has broken
// no rule; one that breaks a rule which the library does not count has.
func TestAFarewellIsNoMistake(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		says string
		send func(*speaking)
		want int
	}{
		{"GOAWAY without an error", func(s *speaking) { s.frames.WriteGoAway(0, http2.ErrCodeNo, nil) }, 0},
		{"GOAWAY with one", func(s *speaking) { s.frames.WriteGoAway(0, http2.ErrCodeInternal, []byte("I give up")) }, 0},
		{"a frame between the parts of a head", func(s *speaking) {
			s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
			s.frames.WritePing(false, [8]byte{})
		}, 1},
	} {
		w := newInspectWorld(t, inspectPolicy, nil)
		o := w.pki.secureOrigin(t, true, func(http.ResponseWriter, *http.Request) {}, nil)
		c := w.tunnel(t, "allowed.test", o.port, "h2")
		s := startSpeaking(t, c)
		row.send(s)
		s.flush(t)
		io.Copy(io.Discard, c) // until the server has had enough
		c.NetConn().Close()
		w.closed(t)
		if n := w.count(t, func(r record.Record) bool { return r.Kind == record.KindRefused }); n != row.want {
			t.Errorf("%s: %d records of malformed requests, want %d", row.says, n, row.want)
		}
	}
}

// TestNoRequestTrailersGoUp, not even by name.
func TestNoRequestTrailersGoUp(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	seen := make(chan http.Header, 1)
	o := w.pki.secureOrigin(t, true, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		seen <- r.Trailer
	}, nil)
	r, err := http.NewRequestWithContext(t.Context(), "POST", o.url("allowed.test", "/public/x"), io.NopCloser(strings.NewReader("abc")))
	if err != nil {
		t.Fatal(err)
	}
	r.Trailer = http.Header{"X-Forwarded-For": {"v"}, "X-My": {"w"}}
	resp, err := w.h2(t, "allowed.test", o.port).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := <-seen; len(got) > 0 {
		t.Errorf("the upstream was sent %v", got)
	}
}

// TestAnUpstreamThatIsGoneBeforeThePreface breaks off between its handshake and
// the client's. The tunnel's record says so.
func TestAnUpstreamThatIsGoneBeforeThePreface(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	gone := make(chan struct{})
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		exchange.Abort(c.(*tls.Conn).NetConn().(*gatheringConn).Conn)
		close(gone)
	}, "h2")
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
	inner := tls.Client(&lateConn{c.Conn, gone}, &tls.Config{ServerName: "allowed.test", RootCAs: w.pool, NextProtos: []string{"h2"}})
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	ask(t, over(t, inner), "GET", o.url("allowed.test", "/public/x"), nil).refused(t, 502, policy.NetworkReset)
	inner.NetConn().Close()
	w.closed(t)
	w.recorded(t, func(r record.Record) bool {
		return r.Kind == record.KindClose && r.HTTP == nil && r.Outcome == record.Outcome(policy.NetworkReset)
	})
}

// A lateConn reads nothing before gone is closed.
type lateConn struct {
	net.Conn
	gone <-chan struct{}
}

func (c *lateConn) Read(b []byte) (int, error) {
	<-c.gone
	return c.Conn.Read(b)
}
