package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

const webSocketPolicy = `version: 1
allow:
  - {host: "allowed.test:*", paths: ["/live"], upgrade: websocket, id: live}
  - {host: "allowed.test:*", paths: ["/public/**"], id: public}
  - "other.test:*"
unsafe_allow: ["127.0.0.1:*"]
`

var webSocketFields = []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}

const switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"

// talk consents to a WebSocket on a raw connection, repeats three bytes, and
// then goes on with serve.
func talk(t *testing.T, c net.Conn, serve func(net.Conn)) {
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Sec-Websocket-Key") == "" {
		t.Errorf("asked with %v", r.Header)
	}
	io.WriteString(c, switched)
	var three [3]byte
	if _, err := io.ReadFull(in, three[:]); err != nil {
		t.Error(err)
	}
	c.Write(three[:])
	serve(&talking{c, in})
}

// talking is a connection of which a part was read ahead.
type talking struct {
	net.Conn
	in *bufio.Reader
}

func (t *talking) Read(p []byte) (int, error) { return t.in.Read(p) }

// head reads the head of a response.
func (c *testClient) head() (status int) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.in, &http.Request{Method: "GET"})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode
}

// TestWebSocketsCarryBothWays opens them in clear and inside, and ends them
// from either side.
func TestWebSocketsCarryBothWays(t *testing.T) {
	ends := map[string]struct {
		serve func(net.Conn)
		end   func(*testClient)
	}{
		"the upstream ends": {func(net.Conn) {}, func(c *testClient) { c.rest(); c.Close() }},
		"the client ends":   {func(c net.Conn) { io.Copy(io.Discard, c) }, func(c *testClient) { c.Close() }},
	}
	for name, tt := range ends {
		t.Run(name+" in clear", func(t *testing.T) {
			w := newInspectWorld(t, webSocketPolicy, nil)
			o := newOrigin(t, func(c net.Conn) { talk(t, c, tt.serve) })
			c := w.dial(t).send(get("other.test", o.port, "/live", webSocketFields...))
			w.checkWebSocket(t, c, tt.end)
		})
		t.Run(name+" inside", func(t *testing.T) {
			w := newInspectWorld(t, webSocketPolicy, nil)
			o := w.pki.rawOrigin(t, func(c net.Conn) { talk(t, c, tt.serve) })
			c := w.inside(t, "allowed.test", o.port)
			c.send(insideGet("allowed.test", o.port, "/live", webSocketFields...))
			w.checkWebSocket(t, c, tt.end)
		})
	}
}

func (w *inspectWorld) checkWebSocket(t *testing.T, c *testClient, end func(*testClient)) {
	t.Helper()
	if status := c.head(); status != http.StatusSwitchingProtocols {
		t.Fatalf("answered %d", status)
	}
	c.send("abc").expect("abc")
	end(c)
	record := w.recorded(t, closeOf(w.recorded(t, requestTo("/live"))))
	if record.HTTP.Status != http.StatusSwitchingProtocols || record.Bytes.Up < 3 || record.Bytes.Down < 3 || record.Outcome != "closed" {
		t.Errorf("ended %+v %+v %+v", record, record.HTTP, record.Bytes)
	}
	w.closed(t)
}

func TestAWebSocketWithoutARuleIsRefused(t *testing.T) {
	t.Parallel()
	w := newInspectWorld(t, webSocketPolicy, nil)
	o := w.pki.secureOrigin(t, false, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s went up", r.RequestURI) }, nil)
	c := w.inside(t, "allowed.test", o.port)
	c.send(insideGet("allowed.test", o.port, "/public/x", webSocketFields...))
	resp, body := c.response("GET")
	reply{resp, body}.refused(t, 403, policy.UpgradeDenied)
	w.closed(t)
}

// TestOtherUpgradesPassWhereNobodyJudgesRequests, behind a body, too, and are refused by name elsewhere.
func TestOtherUpgradesPassWhereNobodyJudgesRequests(t *testing.T) {
	w := newInspectWorld(t, webSocketPolicy, nil)
	key := "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
	serve := func(c net.Conn) {
		in := bufio.NewReader(c)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, _ := io.ReadAll(r.Body)
		protocols := strings.Split(strings.Join(r.Header.Values("Upgrade"), ", "), ", ")
		io.WriteString(c, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: "+protocols[len(protocols)-1]+"\r\n\r\n"+string(body))
		io.Copy(c, in)
	}
	clear, secure := newOrigin(t, serve), w.pki.rawOrigin(t, serve)
	for _, fields := range [][]string{
		{"Connection: Upgrade", "Upgrade: tcp"},
		{"Connection: Upgrade", "Upgrade: TLS/1.0", key},
		{"Connection: keep-alive, upgrade", "Upgrade: websocket, foo", key},
		{"Connection: Upgrade", "Upgrade: websocket", "Upgrade: foo", key},
		{"Connection: Upgrade", "Upgrade: websocket"},
		{"Connection: Upgrade", "Upgrade: h2c"},
	} {
		c := w.dial(t).send(request("POST", "other.test", clear.port, "/x", append(fields, "Content-Length: 4")...) + "\r\nbody")
		if status := c.head(); status != 101 {
			t.Fatalf("%q: %d", fields, status)
		}
		c.expect("body").send("\x00raw").expect("\x00raw")
		c.Close()
		end := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindClose && r.HTTP != nil && r.HTTP.Status == 101 })
		if end.Outcome != "closed" || end.Bytes.Up < 8 || end.Bytes.Down < 8 {
			t.Errorf("%q: ended %s with %+v", fields, end.Outcome, end.Bytes)
		}
		c = w.inside(t, "allowed.test", secure.port)
		resp, body := c.send(insideGet("allowed.test", secure.port, "/live", fields...)).response("GET")
		reply{resp, body}.refused(t, 403, policy.UpgradeDenied)
		c.Close()
	}
	w.closed(t)
}

// TestAnOfferOfHTTP2IsNoUpgrade: curl and Java make it with each request in clear, and take HTTP/1.1 for an answer.
func TestAnOfferOfHTTP2IsNoUpgrade(t *testing.T) {
	w := newInspectWorld(t, webSocketPolicy, nil)
	handle := func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" || r.Header.Get("Connection") != "" || r.Header.Get("Http2-Settings") != "" {
			t.Errorf("sent on: %v", r.Header)
		}
		io.WriteString(rw, "plain")
	}
	inside, clear := w.pki.secureOrigin(t, false, handle, nil), webOrigin(t, handle)
	for _, fields := range [][]string{
		{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"},
		{"Connection: close", "Upgrade: websocket"},
	} {
		c := w.inside(t, "allowed.test", inside.port)
		if resp, body := c.send(insideGet("allowed.test", inside.port, "/live", fields...)).response("GET"); resp.StatusCode != 200 || body != "plain" {
			t.Errorf("%q inside: %d %s", fields, resp.StatusCode, body)
		}
		c.Close()
		c = w.dial(t).send(get("other.test", clear.port, "/live", fields...))
		if resp, body := c.response("GET"); resp.StatusCode != 200 || body != "plain" {
			t.Errorf("%q in clear: %d %s", fields, resp.StatusCode, body)
		}
		c.Close()
	}
	w.closed(t)
}

// TestASwitchThatNobodyAskedForIsRefused has upstreams answer 101 to requests
// that are no WebSocket, and something else to those that are.
func TestASwitchThatNobodyAskedForIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name, answer string
		fields       []string
	}{
		{"unasked", switched, nil},
		{"to another protocol", strings.Replace(switched, "websocket", "foo", 1), webSocketFields},
		{"to two", strings.Replace(switched, "Upgrade: websocket", "Upgrade: websocket\r\nUpgrade: foo", 1), webSocketFields},
		{"for another key", strings.Replace(switched, "s3pPL", "s3pPM", 1), webSocketFields},
		{"for no key", strings.Replace(switched, "Sec-WebSocket-Accept", "Sec-WebSocket-Other", 1), webSocketFields},
		{"for two keys", strings.Replace(switched, "Sec-WebSocket-Accept", "Sec-WebSocket-Accept: dGVzdA==\r\nSec-WebSocket-Accept", 1), webSocketFields},
		{"to an extension", strings.Replace(switched, "\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n", 1), webSocketFields},
		{"without Connection", strings.Replace(switched, "Connection: Upgrade\r\n", "", 1), webSocketFields},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newInspectWorld(t, webSocketPolicy, nil)
			o := w.pki.rawOrigin(t, func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.WriteString(c, tt.answer+"leaked")
				}
				io.Copy(io.Discard, c)
			})
			c := w.inside(t, "allowed.test", o.port)
			c.send(insideGet("allowed.test", o.port, "/live", tt.fields...))
			resp, body := c.response("GET")
			reply{resp, body}.refused(t, 502, policy.MalformedResponse)
			if strings.Contains(c.rest(), "leaked") {
				t.Error("what came behind the switch went through")
			}
			c.Close()
			w.recorded(t, func(r record.Record) bool {
				return r.Kind == record.KindClose && r.HTTP != nil && r.Outcome == "malformed-response"
			})
			w.closed(t)
		})
	}
}

// TestAWebSocketCanBeDeclined: the answer to it is a response like others.
func TestAWebSocketCanBeDeclined(t *testing.T) {
	w := newInspectWorld(t, webSocketPolicy, nil)
	o := w.pki.secureOrigin(t, false, func(rw http.ResponseWriter, r *http.Request) { http.Error(rw, "not today", http.StatusUpgradeRequired) }, nil)
	c := w.inside(t, "allowed.test", o.port)
	for range 2 {
		c.send(insideGet("allowed.test", o.port, "/live", webSocketFields...))
		if resp, body := c.response("GET"); resp.StatusCode != 426 || body != "not today\n" {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
	}
	c.Close()
	w.closed(t)
}
