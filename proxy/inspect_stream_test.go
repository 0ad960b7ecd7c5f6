package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// TestPartsArriveOneByOne has an upstream that sends the next part only when the one before has arrived: of a stream of
// events, and of a body whose length is known.
func TestPartsArriveOneByOne(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		for field, value := range map[string]string{"Content-Type": "text/event-stream", "Content-Length": fmt.Sprint(5 * len("data: 0\n\n"))} {
			w := newInspectWorld(t, inspectPolicy, nil)
			arrived := make(chan struct{})
			o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set(field, value)
				for n := range 5 {
					fmt.Fprintf(rw, "data: %d\n\n", n)
					http.NewResponseController(rw).Flush()
					select {
					case <-arrived:
					case <-r.Context().Done():
						return
					}
				}
			}, nil)
			resp := start(t, w.visitor(t, overH2, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/events"), nil)
			in := bufio.NewReader(resp.Body)
			for n := range 5 {
				line, err := in.ReadString('\n')
				if want := fmt.Sprintf("data: %d\n", n); err != nil || line != want {
					t.Fatalf("%s: read %q, %v; want %q", field, line, err, want)
				}
				in.ReadString('\n')
				arrived <- struct{}{}
			}
			if _, err := in.ReadByte(); err != io.EOF {
				t.Errorf("%s: after the last: %v", field, err)
			}
		}
	})
}

// TestBothBodiesFlowAtOnce: the upstream repeats each piece before the client
// sends the next.
func TestBothBodiesFlowAtOnce(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(rw)
			control.EnableFullDuplex()
			control.Flush()
			buf := make([]byte, 16)
			for {
				n, err := r.Body.Read(buf)
				rw.Write(buf[:n])
				control.Flush()
				if err != nil {
					return
				}
			}
		}, nil)
		body, feed := io.Pipe()
		defer feed.Close()
		resp := start(t, w.visitor(t, overH2, "allowed.test", o.port), "POST", o.url("allowed.test", "/public/x"), body)
		for _, piece := range []string{"one", "two", "three"} {
			io.WriteString(feed, piece)
			got := make([]byte, len(piece))
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != piece {
				t.Fatalf("read %q, %v; want %q", got, err, piece)
			}
		}
		feed.Close()
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
			t.Errorf("and then %q, %v", rest, err)
		}
	})
}

// TestLargeBodiesAreNotHeld carries 24 MiB each way in the memory of a few
// buffers.
func TestLargeBodiesAreNotHeld(t *testing.T) {
	const size = 24 << 20
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			if n != size && r.Method == "POST" {
				t.Errorf("%d bytes arrived, %v", n, err)
			}
			if r.Method == "GET" {
				io.Copy(rw, io.LimitReader(zeros{}, size))
			}
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		debug.FreeOSMemory() // what other tests left would hide what this one takes
		before := inMemory()
		if r := ask(t, rt, "POST", o.url("allowed.test", "/public/up"), io.LimitReader(zeros{}, size)); r.StatusCode != 200 {
			t.Error(r.all())
		}
		resp := start(t, rt, "GET", o.url("allowed.test", "/public/down"), nil)
		if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if grown := inMemory() - before; grown > size*3/4 {
			t.Errorf("memory grew by %d MiB", grown>>20)
		}
		up := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/up")))).Bytes
		down := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/down")))).Bytes
		if up.Up < size || down.Down < size {
			t.Errorf("counted %+v and %+v", up, down)
		}
	})
}

// inMemory is what the heap and the stacks take of the system's memory.
func inMemory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapSys - m.HeapReleased + m.StackSys)
}

// TestTrailersPass as gRPC sends them: announced by nobody, behind a body or
// behind none.
func TestTrailersPass(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, r *http.Request) {
			io.Copy(rw, r.Body)
			http.NewResponseController(rw).Flush()
			rw.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
			rw.Header().Set(http.TrailerPrefix+"X-Egressd-Id", "forged")
			rw.Header().Set(http.TrailerPrefix+"Te-Seen", r.Header.Get("Te"))
		}, nil)
		rt := w.visitor(t, overH2, "allowed.test", o.port)
		for _, text := range []string{"message", ""} {
			r := ask(t, rt, "POST", o.url("allowed.test", "/public/pkg.Service/Call"), strings.NewReader(text), "Te: trailers", "Content-Type: application/grpc")
			if r.body != text || r.Trailer.Get("Grpc-Status") != "0" || r.Trailer.Get("X-Egressd-Id") != "" {
				t.Errorf("answered %s", r.all())
			}
			if overH2 && r.Trailer.Get("Te-Seen") != "trailers" {
				t.Errorf("the upstream was not told that trailers are welcome: %s", r.all())
			}
		}
	})
}

// TestAClientThatLeavesTakesItsRequestAlong: what it had begun to send is
// never taken for complete, and its flows end.
func TestAClientThatLeavesTakesItsRequestAlong(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		began, left := make(chan struct{}), make(chan error, 1)
		o := w.pki.secureOrigin(t, overH2, func(_ http.ResponseWriter, r *http.Request) {
			io.ReadFull(r.Body, make([]byte, 5))
			close(began)
			_, err := io.Copy(io.Discard, r.Body)
			left <- err
		}, nil)
		protos := []string{"http/1.1"}
		if overH2 {
			protos = []string{"h2"}
		}
		tunnel := w.tunnel(t, "allowed.test", o.port, protos...)
		rt := over(t, tunnel)
		body, feed := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			r, _ := http.NewRequestWithContext(t.Context(), "POST", o.url("allowed.test", "/public/x"), body)
			if resp, err := rt.RoundTrip(r); err == nil {
				t.Errorf("answered %s", resp.Status)
				resp.Body.Close()
			}
		}()
		io.WriteString(feed, "begin")
		soon(t, "the body arrives", began)
		tunnel.NetConn().Close()
		select {
		case err := <-left:
			if err == nil {
				t.Error("the upstream took the body for complete")
			}
		case <-time.After(30 * time.Second):
			t.Error("the upstream does not learn of it")
		}
		feed.Close()
		<-done
		w.closed(t)
		if n := w.count(t, func(r record.Record) bool {
			return r.Kind == record.KindClose && r.HTTP != nil && r.Outcome == "client-left"
		}); n != 1 {
			t.Errorf("%d requests ended as client-left", n)
		}
	})
}

// TestAnUpstreamThatBreaksOffIsNotCompleted: a client never takes half a
// response for a whole one.
func TestAnUpstreamThatBreaksOffIsNotCompleted(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		o := w.pki.secureOrigin(t, overH2, func(rw http.ResponseWriter, _ *http.Request) {
			io.WriteString(rw, "half of")
			http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler)
		}, nil)
		resp := start(t, w.visitor(t, overH2, "allowed.test", o.port), "GET", o.url("allowed.test", "/public/x"), nil)
		if text, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("read %q as the whole response", text)
		}
		if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/x")))); end.Outcome != "reset" {
			t.Errorf("ended %+v", end)
		}
	})
}

// TestShutdownInTheMiddle of requests, uploads, WebSockets, handshakes and
// idle tunnels: each flow has its end, and nobody is waited for.
func TestShutdownInTheMiddle(t *testing.T) {
	w := newInspectWorld(t, bothPaths, nil)
	slow, slow2 := newSlowOrigin(t, w, false), newSlowOrigin(t, w, true)
	t.Cleanup(func() { close(slow.release); close(slow2.release) })
	sockets := w.pki.rawOrigin(t, func(c net.Conn) { talk(t, c, func(c net.Conn) { io.Copy(io.Discard, c) }) })
	var silent atomic.Int64
	mute := newOrigin(t, func(c net.Conn) { silent.Add(1); io.Copy(io.Discard, c) })
	for _, version := range []bool{false, true} {
		o := slow
		if version {
			o = slow2
		}
		rt := w.visitor(t, version, "allowed.test", o.port)
		begun(t, start(t, rt, "GET", o.url("allowed.test", "/stays"), nil))
		body, feed := io.Pipe()
		t.Cleanup(func() { feed.Close() })
		begun(t, start(t, rt, "POST", o.url("allowed.test", "/stays"), body))
	}
	c := w.inside(t, "allowed.test", sockets.port)
	c.send(insideGet("allowed.test", sockets.port, "/stays", webSocketFields...)).head()
	c.send("abc").expect("abc")
	w.inside(t, "allowed.test", slow.port) // idle
	w.dial(t).send(connectTo("allowed.test", mute.port)).expect(established).send(hello(t, "base-allowed"))
	for silent.Load() == 0 {
		runtime.Gosched()
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if w.Shutdown(ctx) == nil {
		t.Error("nothing was cut")
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("the shutdown took %v", took)
	}
	w.closed(t)
}
