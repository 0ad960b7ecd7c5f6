package proxy

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// keptUpstream is an upstream that counts its TLS connections. Only answer differs.
func (w *inspectWorld) keptUpstream(t *testing.T, answer func(c net.Conn, n int) bool) (o *origin, handshakes *atomic.Int64) {
	handshakes = new(atomic.Int64)
	return w.pki.rawOrigin(t, func(c net.Conn) {
		handshakes.Add(1)
		serveRequests(c, func(n int, _ *http.Request) bool { return answer(c, n) })
	}), handshakes
}

// askInTunnel asks once in a tunnel of its own, and waits until the tunnel has ended.
func (w *inspectWorld) askInTunnel(t *testing.T, port, method string, fields ...string) {
	t.Helper()
	c := w.inside(t, "allowed.test", port)
	c.send(insideRequest(method, "allowed.test", port, "/public/x", append(fields, "Content-Length: 0")...))
	if resp, got := c.response(method); resp.StatusCode != 200 && resp.StatusCode != 404 || got != "fine" {
		t.Fatalf("answered %d %q", resp.StatusCode, got)
	}
	c.Close()
	w.settled(t)
}

// TestATunnelGetsTheUpstreamConnectionOfAnEarlierOne asks twice, each in a tunnel of its own.
func TestATunnelGetsTheUpstreamConnectionOfAnEarlierOne(t *testing.T) {
	fine := func(c net.Conn, _ int) bool { io.WriteString(c, keptFine); return true }
	for name, row := range map[string]struct {
		answer     func(c net.Conn, n int) bool
		between    func(*testing.T, *inspectWorld)
		method     string
		fields     []string
		second     string // the address of the second client, where it is another one
		handshakes int64
	}{
		"a GET":  {answer: fine, method: "GET", handshakes: 1},
		"a POST": {answer: fine, method: "POST", handshakes: 2},
		"a status that is an error": {answer: func(c net.Conn, _ int) bool {
			io.WriteString(c, strings.Replace(keptFine, "200 OK", "404 Not Found", 1))
			return true
		}, method: "GET", handshakes: 2},
		"another client": {answer: fine, method: "GET", second: "127.0.0.2", handshakes: 2},
		"a POST, to an upstream that has closed": {answer: func(c net.Conn, _ int) bool {
			io.WriteString(c, keptFine)
			time.Sleep(50 * time.Millisecond)
			return false
		}, between: func(*testing.T, *inspectWorld) { time.Sleep(200 * time.Millisecond) }, method: "POST", handshakes: 2},
		"a connection that a request authenticated": {answer: fine, method: "GET", fields: []string{"Authorization: Negotiate YII="}, handshakes: 2},
		"an upstream that ends its connection": {answer: func(c net.Conn, _ int) bool {
			io.WriteString(c, strings.Replace(keptFine, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
			return false
		}, method: "GET", handshakes: 2},
		"an upstream that says more unasked": {answer: func(c net.Conn, _ int) bool {
			io.WriteString(c, keptFine)
			time.AfterFunc(50*time.Millisecond, func() { io.WriteString(c, strings.ReplaceAll(keptFine, "fine", "evil")) })
			return true
		}, between: func(*testing.T, *inspectWorld) { time.Sleep(200 * time.Millisecond) }, method: "GET", handshakes: 2},
		"an upstream that closes with the next request": {answer: func(c net.Conn, n int) bool {
			if n == 1 {
				io.WriteString(c, keptFine)
			}
			return n == 1
		}, method: "GET", handshakes: 2},
		"another policy": {answer: fine, between: func(t *testing.T, w *inspectWorld) { w.obey(t, inspectPolicy) }, method: "GET", handshakes: 2},
		"too long ago":   {answer: fine, between: func(*testing.T, *inspectWorld) { time.Sleep(1500 * time.Millisecond) }, method: "GET", handshakes: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newInspectWorld(t, inspectPolicy, nil)
			o, handshakes := w.keptUpstream(t, row.answer)
			w.askInTunnel(t, o.port, row.method, row.fields...)
			if row.between != nil {
				row.between(t, w)
			}
			if row.second != "" {
				w.from = row.second
			}
			w.askInTunnel(t, o.port, row.method, row.fields...)
			if n := handshakes.Load(); n != row.handshakes {
				t.Errorf("%d TLS connections to the upstream, want %d", n, row.handshakes)
			}
			noted := 0
			for _, r := range w.records(t) {
				if r.Kind == record.KindClose && strings.Contains(r.Note, "kept from an earlier tunnel") {
					noted++
				}
			}
			if row.handshakes == 1 && noted != 1 {
				t.Errorf("%d records say that the connection was kept", noted)
			}
			w.closed(t)
		})
	}
}
