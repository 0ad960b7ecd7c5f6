package proxy

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

// TestAConnectionThatIsThroughIsClosed, where its upstream says goodbye and
// stays.
func TestAConnectionThatIsThroughIsClosed(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	through, closed := make(chan struct{}), make(chan struct{}, 10)
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		f := serveFrames(c)
		id := f.request()
		f.respond(id, "fine", true)
		<-through
		f.WriteGoAway(id, http2.ErrCodeNo, nil)
		io.Copy(io.Discard, c)
		closed <- struct{}{}
	}, "h2")
	rt := w.visitor(t, true, "allowed.test", o.port)
	const requests = 8
	for range requests {
		if r := ask(t, rt, "GET", o.url("allowed.test", "/public/x"), nil); r.body != "fine" {
			t.Fatal(r.all())
		}
		through <- struct{}{}
	}
	for n := range requests - 1 {
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			t.Fatalf("of %d connections %d are still open", requests, requests-n)
		}
	}
}

// TestOldConnectionsAreFew: where each has a stream that does not end, the
// oldest are closed.
func TestOldConnectionsAreFew(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	release := make(chan struct{})
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		f := serveFrames(c)
		id := f.request()
		f.respond(id, "begins ", false)
		f.WriteGoAway(id, http2.ErrCodeNo, nil)
		<-release
		f.WriteData(id, true, []byte("ends"))
		io.Copy(io.Discard, c)
	}, "h2")
	rt := w.visitor(t, true, "allowed.test", o.port)
	var begun []*http.Response
	for range 4 + 3 { // one is not old
		begun = append(begun, start(t, rt, "GET", o.url("allowed.test", "/public/x"), nil))
	}
	for n, resp := range begun[:2] {
		if text, err := io.ReadAll(resp.Body); err == nil || string(text) != "begins " {
			t.Errorf("the stream of connection %d ended with %q, %v", n, text, err)
		}
	}
	close(release)
	for n, resp := range begun[2:] {
		if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "begins ends" {
			t.Errorf("the stream of connection %d ended with %q, %v", n+2, text, err)
		}
	}
}

// TestAStatusHasThreeDigits. What is none is the upstream's fault alone.
func TestAStatusHasThreeDigits(t *testing.T) {
	for status, refused := range map[string]bool{
		"42": true, "099": true, "1000": true, "-5": true, "+200": true, "0000200": true, "x": true,
		"200": false, "299": false, "999": false,
	} {
		w := newInspectWorld(t, inspectPolicy, nil)
		o := w.pki.rawOrigin(t, func(c net.Conn) {
			f := serveFrames(c)
			id := f.request()
			f.head(id, status)
			f.WriteData(id, true, []byte("body"))
			io.Copy(io.Discard, c)
		}, "h2")
		c := w.tunnel(t, "allowed.test", o.port, "h2")
		r := ask(t, over(t, c), "GET", o.url("allowed.test", "/public/x"), nil)
		want := "closed"
		if refused {
			r.refused(t, 502, policy.MalformedResponse)
			want = string(policy.MalformedResponse)
		} else if r.body != "body" || r.Status[:3] != status {
			t.Errorf(":status %s: %s", status, r.all())
		}
		if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/x")))); string(end.Outcome) != want || refused && end.HTTP.Status != 0 {
			t.Errorf(":status %s: ended %+v", status, end)
		}
		c.NetConn().Close()
		w.closed(t)
		if n := w.count(t, func(r record.Record) bool { return r.Kind == record.KindRefused }); n != 0 {
			t.Errorf(":status %s: %d records of malformed requests", status, n)
		}
	}
}

// status reads to the next head and returns what it says.
func (s *speaking) status(t *testing.T) (status string) {
	t.Helper()
	s.in.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.until(t, func(f http2.Frame) bool {
		head, ok := f.(*http2.MetaHeadersFrame)
		if ok {
			status = head.PseudoValue("status")
		}
		return ok
	})
	return status
}

// TestABodyHasOneLength.
func TestABodyHasOneLength(t *testing.T) {
	for _, row := range []struct {
		says    string
		lengths []string
		want    string
	}{
		{"one", []string{"5"}, "200"},
		{"the same twice", []string{"5", "5"}, "200"},
		{"two", []string{"5", "9"}, "400"},
		{"two of one value", []string{"5", "05"}, "400"},
		{"a list", []string{"5, 5"}, "400"},
		{"no number", []string{"x"}, "400"},
		{"a sign", []string{"+5"}, "400"},
		{"less than nothing", []string{"-1"}, "400"},
		{"too much", []string{"9223372036854775808"}, "400"},
		{"nothing", []string{""}, "400"},
	} {
		w := newInspectWorld(t, inspectPolicy, nil)
		var asked atomic.Int64
		o := w.pki.secureOrigin(t, true, func(_ http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if text, err := io.ReadAll(r.Body); string(text) != "hello" || err != nil || r.ContentLength != 5 {
				t.Errorf("the upstream read %q of %d, %v", text, r.ContentLength, err)
			}
		}, nil)
		tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
		s := startSpeaking(t, tunnel)
		head := []string{":method", "POST", ":scheme", "https", ":authority", "allowed.test:" + o.port, ":path", "/public/x"}
		for _, length := range row.lengths {
			head = append(head, "content-length", length)
		}
		s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.encode(head...), EndHeaders: true})
		if row.want == "200" {
			s.frames.WriteData(1, true, []byte("hello"))
		}
		s.flush(t)
		if got := s.status(t); got != row.want || (asked.Load() == 1) != (got == "200") {
			t.Errorf("%s: answered %s, %d requests went up", row.says, got, asked.Load())
		}
		if row.want == "400" {
			w.recorded(t, func(r record.Record) bool {
				return r.Kind == record.KindRefused && strings.Contains(r.Decision.Reason, "content-length")
			})
		}
		tunnel.NetConn().Close()
		w.closed(t)
	}
}

// TestAnUpstreamMayHintSoOften, and no more.
func TestAnUpstreamMayHintSoOften(t *testing.T) {
	w := newLimitedWorld(t, inspectPolicy, Limits{Idle: 5 * time.Second}, nil)
	reset := make(chan struct{})
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		f := serveFrames(c)
		for _, hints := range []int{exchange.InterimMost, exchange.InterimMost + 1} {
			id := f.request()
			for range hints {
				f.head(id, "103")
			}
			if hints == exchange.InterimMost {
				f.respond(id, "fine", true)
			}
		}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := frame.(*http2.RSTStreamFrame); ok {
				close(reset)
				return
			}
		}
	}, "h2")
	rt := w.visitor(t, true, "allowed.test", o.port)
	if r := ask(t, rt, "GET", o.url("allowed.test", "/public/few"), nil); r.body != "fine" {
		t.Fatal(r.all())
	}
	ask(t, rt, "GET", o.url("allowed.test", "/public/many"), nil).refused(t, 502, policy.MalformedResponse)
	soon(t, "the upstream's stream to be reset", reset)
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/many")))); end.Outcome != record.Outcome(policy.MalformedResponse) {
		t.Errorf("ended %+v", end)
	}
}
