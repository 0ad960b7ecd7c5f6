package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// socketOf returns the socket of a connection, below its TLS.
func socketOf(c net.Conn) *net.TCPConn {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if gathering, ok := c.(*gatheringConn); ok {
		c = gathering.Conn
	}
	return c.(*net.TCPConn)
}

// A leaving is how a client goes away.
type leaving struct {
	name   string
	inside bool // only TLS shows it
	leave  func(net.Conn)
}

var leavings = []leaving{
	{"by a reset", false, func(c net.Conn) { socketOf(c).SetLinger(0); socketOf(c).Close() }},
	{"without close_notify", true, func(c net.Conn) { socketOf(c).Close() }},
}

// TestAClientThatLeavesIsSeenWhileNothingMoves in each phase of an exchange: its upstream connection and its flow end
// at once, and the record says why.
func TestAClientThatLeavesIsSeenWhileNothingMoves(t *testing.T) {
	t.Parallel()
	phases := map[string]struct {
		send string // behind the head
		says string // what the origin answers before it waits
		last bool   // a client without close_notify is seen, too
	}{
		"waits for the head":       {"\r\n", "", true},
		"stalls in the download":   {"\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", true},
		"stalls behind a hint":     {"\r\n", "HTTP/1.1 103 Early Hints\r\n\r\n", true},
		"waits after its body":     {"Content-Length: 5\r\n\r\nhello", "", true},
		"is in its body":           {"Content-Length: 9\r\n\r\nhello", "", true},
		"waits to send more":       {"Content-Length: 99999999\r\n\r\n" + strings.Repeat("x", 32<<20), "", false},
		"has sent the next, too":   {"\r\n" + insideGet("x.test", "1", "/y"), "", true},
		"has sent far more, ahead": {"\r\n" + strings.Repeat("x", 200<<10), "", false},
	}
	for name, phase := range phases {
		t.Run(name, func(t *testing.T) {
			began, release := make(chan struct{}, 8), make(chan struct{})
			gone := make(chan error, 8)
			serve := func(c net.Conn) {
				in := bufio.NewReader(c)
				if _, err := http.ReadRequest(in); err != nil {
					return
				}
				io.WriteString(c, phase.says)
				began <- struct{}{}
				if name == "waits to send more" { // it reads nothing, and so sees no end
					<-release
				}
				_, err := io.Copy(io.Discard, in)
				gone <- err
			}
			for _, how := range leavings {
				if !phase.last && how.inside {
					continue
				}
				w := newInspectWorld(t, inspectPolicy, nil)
				eachRawWay(t, w, serve, func(t *testing.T, dial func() rawWay) {
					c := dial()
					if _, secure := c.Conn.(*tls.Conn); how.inside && !secure {
						return
					}
					go io.WriteString(c.Conn, strings.TrimSuffix(c.request("GET", "/public/x"), "\r\n")+phase.send)
					<-began
					time.Sleep(50 * time.Millisecond) // what the client has sent is on its way
					begin := time.Now()
					how.leave(c.Conn)
					w.recorded(t, func(r record.Record) bool {
						return r.Kind == record.KindClose && r.HTTP != nil && r.Outcome == "client-left"
					})
					if took := time.Since(begin); took > 5*time.Second {
						t.Errorf("%s: took %v", how.name, took)
					}
					if name != "waits to send more" {
						<-gone
					}
				})
				w.settled(t)
			}
			close(release)
		})
	}
}

// TestAClientThatHalfClosesGetsItsAnswer: FIN, and close_notify, only say that it sends no more.
func TestAClientThatHalfClosesGetsItsAnswer(t *testing.T) {
	t.Parallel()
	w := newInspectWorld(t, inspectPolicy, nil)
	serve := func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			time.Sleep(time.Second) // longer than between two looks
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")
		}
	}
	eachRawWay(t, w, serve, func(t *testing.T, dial func() rawWay) {
		c := dial()
		c.send(c.request("GET", "/public/x"))
		if err := c.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		socketOf(c.Conn).CloseWrite()
		if _, body := c.response("GET"); body != "late" {
			t.Errorf("read %q", body)
		}
	})
	w.settled(t)
}

// TestAStreamThatLeavesIsSeenWhileNothingMoves over HTTP/2, as its connection.
func TestAStreamThatLeavesIsSeenWhileNothingMoves(t *testing.T) {
	t.Parallel()
	ways := append(leavings[:2:2], leaving{name: "by a reset of the stream"})
	for _, how := range ways {
		for _, says := range []string{"", "half"} {
			w := newInspectWorld(t, inspectPolicy, nil)
			began, gone := make(chan struct{}), make(chan struct{})
			o := w.pki.secureOrigin(t, true, func(rw http.ResponseWriter, r *http.Request) {
				io.WriteString(rw, says)
				if says != "" {
					http.NewResponseController(rw).Flush()
				}
				close(began)
				<-r.Context().Done()
				close(gone)
			}, nil)
			tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
			ctx, reset := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				r, _ := http.NewRequestWithContext(ctx, "GET", o.url("allowed.test", "/public/x"), nil)
				if resp, err := over(t, tunnel).RoundTrip(r); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			<-began
			if how.leave != nil {
				how.leave(tunnel)
			} else {
				reset()
			}
			soon(t, how.name+": the upstream's stream ends", gone)
			if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/public/x")))); end.Outcome != "client-left" {
				t.Errorf("%s, %q: ended %s", how.name, says, end.Outcome)
			}
			reset()
			<-done
			tunnel.NetConn().Close()
			w.settled(t)
		}
	}
}
