package proxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// keptFine is a response that leaves the connection open.
const keptFine = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"

// serveRequests answers each request on c by answer, as long as that says so.
func serveRequests(c net.Conn, answer func(n int, r *http.Request) bool) {
	in := bufio.NewReader(c)
	for n := 1; ; n++ {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		io.Copy(io.Discard, r.Body)
		if !answer(n, r) {
			return
		}
	}
}

// TestAnUpstreamThatClosesIsDialledAgain closes it in every way between two
// requests. The client's tunnel stands, and even a POST comes through.
func TestAnUpstreamThatClosesIsDialledAgain(t *testing.T) {
	for name, end := range map[string]func(c net.Conn){
		"orderly":            func(c net.Conn) { c.Close() },
		"without a farewell": func(c net.Conn) { c.(*tls.Conn).NetConn().Close() },
		"by a reset":         func(c net.Conn) { exchange.Abort(c.(*tls.Conn).NetConn().(*gatheringConn).Conn) },
	} {
		for _, announced := range []bool{false, true} {
			for _, method := range []string{"GET", "POST"} {
				t.Run(fmt.Sprint(name, " ", announced, " ", method), func(t *testing.T) {
					w := newInspectWorld(t, inspectPolicy, nil)
					var conns atomic.Int64
					read, ended := make(chan struct{}), make(chan struct{})
					o := w.pki.rawOrigin(t, func(c net.Conn) {
						if conns.Add(1) > 1 {
							serveRequests(c, func(int, *http.Request) bool { io.WriteString(c, keptFine); return true })
							return
						}
						serveRequests(c, func(int, *http.Request) bool {
							if announced {
								io.WriteString(c, strings.Replace(keptFine, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
							} else {
								io.WriteString(c, keptFine)
							}
							return false
						})
						<-read // until the client has read the answer, so that a reset cannot take it away
						end(c)
						close(ended)
					})
					c := w.inside(t, "allowed.test", o.port)
					ask := func(body string) {
						t.Helper()
						c.send(insideRequest(method, "allowed.test", o.port, "/public/x", fmt.Sprint("Content-Length: ", len(body))) + body)
						if resp, got := c.response(method); resp.StatusCode != 200 || got != "fine" {
							t.Fatalf("answered %d %q", resp.StatusCode, got)
						}
					}
					ask("one")
					close(read)
					<-ended
					ask("two")
					ask("three")
					if n := conns.Load(); n != 2 {
						t.Errorf("%d connections to the upstream", n)
					}
					c.Close()
					w.closed(t)
				})
			}
		}
	}
}

// TestWhatAnUpstreamSaysUnaskedAnswersNothingInside has it say more than its
// response: in the same record, in another one of the same segment, and later.
func TestWhatAnUpstreamSaysUnaskedAnswersNothingInside(t *testing.T) {
	const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
	for name, say := range map[string]func(c net.Conn){
		"in one record":    func(c net.Conn) { io.WriteString(c, keptFine+forged) },
		"in one segment":   func(c net.Conn) { inOneSegment(c, keptFine, forged) },
		"record by record": func(c net.Conn) { io.WriteString(c, keptFine); io.WriteString(c, forged) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newInspectWorld(t, inspectPolicy, nil)
			said := make(chan struct{}, 8)
			o := w.pki.rawOrigin(t, func(c net.Conn) {
				serveRequests(c, func(n int, _ *http.Request) bool { say(c); said <- struct{}{}; return true })
			})
			c := w.inside(t, "allowed.test", o.port)
			for range 5 {
				c.send(insideGet("allowed.test", o.port, "/public/x"))
				resp, body := c.response("GET")
				if resp.StatusCode != 200 || body != "fine" {
					t.Fatalf("answered %d %q", resp.StatusCode, body)
				}
				<-said
			}
			c.Close()
			w.closed(t)
		})
	}
}

// inOneSegment sends each text in a record of its own, and all with one write.
func inOneSegment(c net.Conn, texts ...string) {
	secure := c.(*tls.Conn)
	together := secure.NetConn().(*gatheringConn)
	together.gather(true)
	for _, text := range texts {
		io.WriteString(secure, text)
	}
	together.gather(false)
}

// A gatheringConn holds writes back while it gathers.
type gatheringConn struct {
	net.Conn
	held      []byte
	gathering bool
}

func (c *gatheringConn) Write(b []byte) (int, error) {
	if c.gathering {
		c.held = append(c.held, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *gatheringConn) gather(on bool) {
	c.gathering = on
	if !on {
		c.Conn.Write(c.held)
		c.held = nil
	}
}

// TestTicketsDoNotCostTheConnection: TLS 1.3 servers send them behind the
// handshake.
func TestTicketsDoNotCostTheConnection(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	var conns atomic.Int64
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		conns.Add(1)
		serveRequests(c, func(int, *http.Request) bool { io.WriteString(c, keptFine); return true })
	})
	c := w.inside(t, "allowed.test", o.port)
	for range 3 {
		c.send(insideRequest("POST", "allowed.test", o.port, "/public/x", "Content-Length: 0"))
		if resp, body := c.response("POST"); resp.StatusCode != 200 || body != "fine" {
			t.Fatalf("answered %d %q", resp.StatusCode, body)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections to the upstream", n)
	}
	// The next tunnel of the sandbox makes use of them.
	c.Close()
	resumed := make(chan bool, 1)
	again := w.pki.secureOrigin(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // or the second tunnel gets the connection
		resumed <- r.TLS.DidResume
	}, nil)
	for _, want := range []bool{false, true} {
		c := w.inside(t, "allowed.test", again.port)
		c.send(insideGet("allowed.test", again.port, "/public/x", "Connection: close")).rest()
		if got := <-resumed; got != want {
			t.Errorf("resumed: %v, want %v", got, want)
		}
	}
}

// TestAnUpstreamThatGoesAwayIsDialledAgain: the next stream goes to a new
// connection, and the one before ends where it began.
func TestAnUpstreamThatGoesAwayIsDialledAgain(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	var conns atomic.Int64
	finish := make(chan struct{})
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		n := conns.Add(1)
		f := serveFrames(c)
		id := f.request()
		f.respond(id, fmt.Sprint("from ", n), n > 1)
		if n == 1 {
			f.WriteGoAway(id, http2.ErrCodeNo, nil)
			<-finish
			f.WriteData(id, true, []byte(", and its end"))
		}
		io.Copy(io.Discard, c)
	}, "h2")
	rt := w.visitor(t, true, "allowed.test", o.port)
	first := start(t, rt, "GET", o.url("allowed.test", "/public/one"), nil)
	var b [6]byte
	io.ReadFull(first.Body, b[:])
	// A POST, which may not be sent twice.
	if r := ask(t, rt, "POST", o.url("allowed.test", "/public/two"), strings.NewReader("body")); r.body != "from 2" {
		t.Errorf("the next stream was answered %s", r.all())
	}
	close(finish)
	if rest, err := io.ReadAll(first.Body); err != nil || string(b[:])+string(rest) != "from 1, and its end" {
		t.Errorf("the stream before ended with %q%q, %v", b[:], rest, err)
	}
}

// frames is the server's end of an HTTP/2 connection.
type frames struct {
	*http2.Framer
}

func serveFrames(c net.Conn) *frames {
	io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
	f := &frames{http2.NewFramer(c, c)}
	f.WriteSettings()
	return f
}

// request reads frames up to a request's head.
func (f *frames) request() (stream uint32) {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return 0
		}
		switch frame := frame.(type) {
		case *http2.HeadersFrame:
			return frame.StreamID
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				f.WriteSettingsAck()
			}
		}
	}
}

func (f *frames) respond(stream uint32, body string, end bool) {
	f.head(stream, "200")
	f.WriteData(stream, end, []byte(body))
}

func (f *frames) head(stream uint32, status string) {
	var block strings.Builder
	hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: status})
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte(block.String()), EndHeaders: true})
}

// TestAnUpstreamThatChangesItsProtocol between two connections of one tunnel.
func TestAnUpstreamThatChangesItsProtocol(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	var conns atomic.Int64
	config := &tls.Config{Certificates: []tls.Certificate{w.pki.Server(t, nil, testNames...)}}
	o := newOrigin(t, func(c net.Conn) {
		mine := config.Clone()
		if conns.Add(1) == 1 {
			mine.NextProtos = []string{"h2"}
		}
		secure := tls.Server(c, mine)
		if secure.Handshake() != nil {
			return
		}
		if len(mine.NextProtos) > 0 {
			f := serveFrames(secure)
			id := f.request()
			f.respond(id, "fine", true)
			f.WriteGoAway(id, http2.ErrCodeNo, nil)
		}
		io.Copy(io.Discard, secure)
	})
	rt := w.visitor(t, true, "allowed.test", o.port)
	if r := ask(t, rt, "GET", o.url("allowed.test", "/public/x"), nil); r.body != "fine" {
		t.Fatal(r.all())
	}
	ask(t, rt, "GET", o.url("allowed.test", "/public/x"), nil).refused(t, 502, policy.NetworkTLS)
}
