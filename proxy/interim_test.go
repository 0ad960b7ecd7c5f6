package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestInterimResponsesPass over HTTP/1, without what egressd alone may say.
func TestInterimResponsesPass(t *testing.T) {
	const hints = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nX-Egressd-Id: forged\r\nContent-Length: 7\r\n\r\n"
	const final = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
	w := newInspectWorld(t, inspectPolicy, nil)
	eachRawWay(t, w, answers(map[string]string{"x": hints + final}), func(t *testing.T, dial func() rawWay) {
		c := dial()
		c.send(c.request("GET", "/public/x")).expect("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" + final)
		c.send(strings.Replace(c.request("GET", "/public/x"), "HTTP/1.1", "HTTP/1.0", 1)).expect("HTTP/1.1 200 OK\r\n") // it would take a hint for the end
		c.Close()
	})
	w.settled(t)
}

// TestABodyWaitsForTheUpstreamsWord: what follows Expect goes up once the upstream says 100, not at all if it says
// something else, and after a while if it says nothing.
func TestABodyWaitsForTheUpstreamsWord(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ first, then, wants string }{
		"it says 100":     {"HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"},
		"it redirects":    {"HTTP/1.1 307 Temporary Redirect\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n", "", "HTTP/1.1 307 Temporary Redirect\r\nLocation: /y\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"},
		"it says nothing": {"", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var early atomic.Bool
			serve := func(c net.Conn) {
				in := bufio.NewReader(c)
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				if r.Header.Get("Expect") != "100-continue" {
					t.Errorf("asked with %v", r.Header)
				}
				c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
				if _, err := in.Peek(1); err == nil {
					early.Store(true)
				}
				c.SetReadDeadline(time.Now().Add(time.Minute))
				io.WriteString(c, tt.first)
				if tt.then == "" {
					if n, _ := io.Copy(io.Discard, in); n > 0 {
						early.Store(true)
					}
					return
				}
				if body, err := io.ReadAll(r.Body); err != nil || string(body) != "hello" {
					t.Errorf("the body is %q, %v", body, err)
				}
				io.WriteString(c, tt.then)
			}
			w := newInspectWorld(t, inspectPolicy, nil)
			eachRawWay(t, w, serve, func(t *testing.T, dial func() rawWay) {
				c := dial()
				c.send(c.request("POST", "/public/x", "Content-Length: 5", "Expect: 100-continue") + "hello").expect(tt.wants)
				c.Close()
			})
			w.settled(t)
			if early.Load() {
				t.Error("some of the body went up before the upstream's word")
			}
		})
	}
}

// TestInterimResponsesPassOverHTTP2, and the body of a request waits for the upstream's 100.
func TestInterimResponsesPassOverHTTP2(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	var early atomic.Bool
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		f := serveFrames(c)
		id := f.request()
		f.head(id, "103")
		f.respond(id, "fine", true)
		id = f.request()
		body := make(chan struct{}, 8)
		go func() {
			for {
				frame, err := f.ReadFrame()
				if err != nil {
					return
				}
				if d, ok := frame.(*http2.DataFrame); ok && len(d.Data()) > 0 {
					body <- struct{}{}
				}
			}
		}()
		select {
		case <-body:
			early.Store(true)
		case <-time.After(300 * time.Millisecond):
		}
		f.head(id, "100")
		<-body
		f.respond(id, "took it", true)
	}, http2.NextProtoTLS)
	cc := w.h2(t, "allowed.test", o.port)
	hints := map[int]string{}
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		hints[code] = h.Get("X-Egressd-Id")
		return nil
	}}
	send := func(method string, body io.Reader, fields ...string) string {
		r, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), method, o.url("allowed.test", "/public/x"), body)
		for i := 0; i < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		resp, err := cc.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return string(text)
	}
	if got := send("GET", nil); got != "fine" {
		t.Errorf("read %q", got)
	}
	if _, hinted := hints[103]; !hinted {
		t.Errorf("interim responses: %v", hints)
	}
	if got := send("POST", bytes.NewReader([]byte("hello")), "Expect", "100-continue"); got != "took it" {
		t.Errorf("read %q", got)
	}
	if early.Load() {
		t.Error("some of the body went up before the upstream's word")
	}
}
