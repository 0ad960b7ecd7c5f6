package proxy

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/inspect"
	"golang.org/x/net/http2"
)

// expiredAuthority was made in the time of a bubble, which is long over.
func expiredAuthority(t *testing.T) (a *certs.Authority) {
	t.Helper()
	dir := t.TempDir() + "/ca"
	synctest.Test(t, func(t *testing.T) {
		var err error
		if a, err = certs.Create(dir); err != nil {
			t.Fatal(err)
		}
	})
	return a
}

// TestAnAuthorityThatCannotSignIsNoFaultOfTheClient, nor of the upstream, which
// is not even greeted.
func TestAnAuthorityThatCannotSignIsNoFaultOfTheClient(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, func(with *inspect.Inspection) { with.Authority = expiredAuthority(t) })
	o := newOrigin(t, func(c net.Conn) {
		if n, _ := c.Read(make([]byte, 1)); n > 0 {
			t.Error("TLS with the upstream began")
		}
	})
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
	if tls.Client(c.Conn, &tls.Config{ServerName: "allowed.test", InsecureSkipVerify: true}).Handshake() == nil {
		t.Fatal("the client's handshake was completed")
	}
	end := w.recorded(t, ended(string(policy.PolicyError)))
	for _, part := range []string{"the local authority cannot sign", "egressd ca rotate", "SIGHUP"} {
		if !strings.Contains(end.Note, part) || strings.Contains(end.Note, "tls.never") {
			t.Errorf("noted %q", end.Note)
		}
	}
	w.closed(t)
}

// A tappedConn keeps what is read from it.
type tappedConn struct {
	net.Conn
	read []byte
}

func (c *tappedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read = append(c.read, b[:n]...)
	return n, err
}

// lastRecord is the type of the last TLS record that was read.
func (c *tappedConn) lastRecord() (kind byte) {
	for b := c.read; len(b) >= 5; b = b[min(len(b), 5+int(binary.BigEndian.Uint16(b[3:]))):] {
		kind = b[0]
	}
	return kind
}

// TestABodyThatEndsWithItsConnectionEndsOrderly where it did so upstream: only
// close_notify tells that it was not cut short (RFC 8446 §6.1). Else it ends by a reset.
func TestABodyThatEndsWithItsConnectionEndsOrderly(t *testing.T) {
	const alert = 21
	for name, tt := range map[string]struct {
		end   func(net.Conn)
		whole bool
	}{
		"orderly":            {func(c net.Conn) { c.Close() }, true},
		"without a farewell": {func(c net.Conn) { c.(*tls.Conn).NetConn().Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newInspectWorld(t, inspectPolicy, nil)
			o := w.pki.rawOrigin(t, func(c net.Conn) {
				http.ReadRequest(bufio.NewReader(c))
				io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nto the end")
				tt.end(c)
			})
			outer := &tappedConn{Conn: w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).Conn}
			c := tls.Client(outer, &tls.Config{ServerName: "allowed.test", RootCAs: w.pool, MaxVersion: tls.VersionTLS12}) // whose alerts can be told
			io.WriteString(c, "GET /public/x HTTP/1.0\r\nHost: allowed.test:"+o.port+"\r\n\r\n")
			got, err := io.ReadAll(c)
			if (err == nil) != tt.whole || tt.whole && !strings.HasSuffix(string(got), "to the end") {
				t.Errorf("read %q, %v", got, err)
			}
			if kind := outer.lastRecord(); (kind == alert) != tt.whole {
				t.Errorf("the last record has type %d", kind)
			}
			w.closed(t)
		})
	}
}

// twoAddresses has an origin at both addresses of two.test. Each serves one
// connection and is gone; the one that serves says its address.
func twoAddresses(t *testing.T, serve func(net.Conn, string), config *tls.Config) (port string) {
	t.Helper()
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ = net.SplitHostPort(first.Addr().String())
	second, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	for _, l := range []net.Listener{first, second} {
		t.Cleanup(func() { l.Close() })
		serving.Go(func() { serveOne(l, serve, config) })
	}
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { first.Close(); second.Close() })
	return port
}

// serveOne serves the first connection with which a handshake succeeds.
func serveOne(l net.Listener, serve func(net.Conn, string), config *tls.Config) {
	defer l.Close()
	host, _, _ := net.SplitHostPort(l.Addr().String())
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		secure := tls.Server(c, config)
		if secure.Handshake() == nil {
			l.Close() // before the client can know that it will be dialled again
			serve(secure, host)
			secure.Close()
			return
		}
		c.Close()
	}
}

// TestRecordsNameTheAddressOfTheirConnection also after another one was dialled.
func TestRecordsNameTheAddressOfTheirConnection(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		const text = "version: 1\nallow: [{host: \"two.test:*\", methods: [GET]}]\nunsafe_allow: [\"127.0.0.1:*\", \"127.0.0.2:*\"]\n"
		w := newInspectWorld(t, text, nil)
		config := &tls.Config{Certificates: []tls.Certificate{w.pki.Server(t, nil, "two.test")}}
		port := twoAddresses(t, sayAddressH1, config)
		if overH2 {
			config = config.Clone()
			config.NextProtos = []string{"h2"}
			port = twoAddresses(t, sayAddressH2, config)
		}
		o := &origin{port: port}
		rt := w.visitor(t, overH2, "two.test", port)
		was := map[string]string{}
		for _, path := range []string{"/one", "/two"} {
			was[path] = ask(t, rt, "GET", o.url("two.test", path), nil).body
		}
		if was["/one"] == was["/two"] {
			t.Fatalf("both went to %s", was["/one"])
		}
		for path, addr := range was {
			open := w.recorded(t, requestTo(path))
			if end := w.recorded(t, closeOf(open)); end.Dst.Addr != addr || open.Dst.Addr != "" {
				t.Errorf("%s went to %s, recorded %q and then %q", path, addr, open.Dst.Addr, end.Dst.Addr)
			}
		}
	})
}

func sayAddressH1(c net.Conn, addr string) {
	if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
		io.WriteString(c, strings.Replace(keptFine, "4\r\n\r\nfine", "9\r\n\r\n"+addr, 1))
	}
}

func sayAddressH2(c net.Conn, addr string) {
	f := serveFrames(c)
	id := f.request()
	f.respond(id, addr, true)
	f.WriteGoAway(id, http2.ErrCodeNo, nil)
	io.Copy(io.Discard, c)
}

// TestASilentUpstreamIsATimeout, whether it says nothing or half a head.
func TestASilentUpstreamIsATimeout(t *testing.T) {
	t.Parallel()
	for name, said := range map[string]string{"nothing": "", "half a head": "HTTP/1.1 200 OK\r\nContent-", "a hint": "HTTP/1.1 103 Early Hints\r\n\r\n"} {
		serve := func(c net.Conn) {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, said)
			io.Copy(io.Discard, c)
		}
		limits := Limits{Idle: time.Second}
		t.Run(name+" in clear", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, openPolicy, func(s *Server) { s.Limits = limits })
			c := w.dial(t).send(get("allowed.test", newOrigin(t, serve).port, "/"))
			resp, body := c.response("GET")
			reply{resp, body}.refused(t, 504, policy.NetworkTimeout)
			w.recorded(t, ended("network-timeout"))
		})
		t.Run(name+" inside", func(t *testing.T) {
			t.Parallel()
			w := newLimitedWorld(t, inspectPolicy, limits, nil)
			o := w.pki.rawOrigin(t, serve)
			c := w.inside(t, "allowed.test", o.port)
			c.send(insideGet("allowed.test", o.port, "/public/x"))
			resp, body := c.response("GET")
			reply{resp, body}.refused(t, 504, policy.NetworkTimeout)
			w.recorded(t, ended("network-timeout"))
		})
	}
}

// TestASilentUpstreamIsNotAskedTwice on a connection that served before.
func TestASilentUpstreamIsNotAskedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, openPolicy, func(s *Server) { s.Limits = Limits{Idle: 2 * time.Second} })
	asked := make(chan struct{}, 8)
	o := newOrigin(t, func(c net.Conn) {
		serveRequests(c, func(n int, _ *http.Request) bool {
			asked <- struct{}{}
			if n == 1 {
				io.WriteString(c, keptFine)
			}
			return true
		})
	})
	c := w.dial(t).send(get("allowed.test", o.port, "/"))
	c.response("GET")
	resp, body := c.send(get("allowed.test", o.port, "/")).response("GET")
	reply{resp, body}.refused(t, 504, policy.NetworkTimeout)
	if n := len(asked); n != 2 {
		t.Errorf("%d requests went up", n)
	}
}

// TestAWebSocketHasALifetime: nothing else ends it. One inside a tunnel has what
// is left of the tunnel's.
func TestAWebSocketHasALifetime(t *testing.T) {
	t.Parallel()
	serve := func(c net.Conn) {
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, switched)
		io.Copy(io.Discard, c)
	}
	t.Run("in clear", func(t *testing.T) {
		w := newLimitedWorld(t, webSocketPolicy, Limits{Lifetime: time.Second}, nil)
		o := newOrigin(t, serve)
		w.outlives(t, w.dial(t).send(get("other.test", o.port, "/live", webSocketFields...)))
	})
	t.Run("inside", func(t *testing.T) {
		w := newLimitedWorld(t, webSocketPolicy, Limits{Lifetime: 3 * time.Second}, nil)
		o := w.pki.rawOrigin(t, serve)
		c := w.inside(t, "allowed.test", o.port)
		w.outlives(t, c.send(insideGet("allowed.test", o.port, "/live", webSocketFields...)))
	})
}

// outlives waits for the end of a client's WebSocket.
func (w *inspectWorld) outlives(t *testing.T, c *testClient) {
	t.Helper()
	if status := c.head(); status != http.StatusSwitchingProtocols {
		t.Fatalf("answered %d", status)
	}
	if b, err := c.in.ReadByte(); err == nil {
		t.Errorf("read %q", b)
	}
	if end := w.recorded(t, closeOf(w.recorded(t, requestTo("/live")))); end.Outcome != "lifetime" {
		t.Errorf("ended %+v", end)
	}
	w.closed(t)
}

// TestHTTP10ClientsAreServed: some offer it by name and nothing else. Their
// upstream is not offered it, when it is dialled again neither.
func TestHTTP10ClientsAreServed(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	o := w.pki.rawOrigin(t, func(c net.Conn) {
		serveRequests(c, func(_ int, r *http.Request) bool {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\n"+r.Proto)
			return false
		})
	}, "http/1.1")
	tunnel := w.tunnel(t, "allowed.test", o.port, "http/1.0")
	if got := tunnel.ConnectionState().NegotiatedProtocol; got != "http/1.0" {
		t.Errorf("negotiated %q", got)
	}
	c := &testClient{tunnel, bufio.NewReader(tunnel), t}
	for range 2 {
		c.send(insideGet("allowed.test", o.port, "/public/x"))
		if resp, body := c.response("GET"); resp.StatusCode != 200 || body != "HTTP/1.1" {
			t.Errorf("answered %d %q", resp.StatusCode, body)
			return
		}
	}
}

// TestAFailedRedialIsToldOfTheRequest: the reply and the record have one id.
func TestAFailedRedialIsToldOfTheRequest(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	config := &tls.Config{Certificates: []tls.Certificate{w.pki.Server(t, nil, testNames...)}}
	gone := make(chan struct{})
	go func() { defer close(gone); serveOne(l, sayAddressH1, config) }()
	c := w.inside(t, "allowed.test", port)
	c.send(insideGet("allowed.test", port, "/public/one"))
	c.response("GET")
	<-gone
	c.send(insideGet("allowed.test", port, "/public/two"))
	resp, body := c.response("GET")
	reply{resp, body}.refused(t, 502, policy.NetworkRefused)
	if two := w.recorded(t, requestTo("/public/two")); resp.Header.Get("X-Egressd-Id") != two.Flow || !strings.Contains(body, two.Flow) || !strings.Contains(body, `"method":"GET"`) {
		t.Errorf("answered %v %s, recorded %+v", resp.Header, body, two)
	}
}

// TestACertificateThatCameToBeWrongIsNotTriedAgain has an upstream show another certificate to the second connection of a tunnel.
func TestACertificateThatCameToBeWrongIsNotTriedAgain(t *testing.T) {
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newInspectWorld(t, inspectPolicy, nil)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		_, port, _ := net.SplitHostPort(l.Addr().String())
		config, serve := &tls.Config{Certificates: []tls.Certificate{w.pki.Server(t, nil, testNames...)}}, sayAddressH1
		if overH2 {
			config.NextProtos, serve = []string{"h2"}, sayAddressH2
		}
		wrong := &tls.Config{Certificates: []tls.Certificate{w.pki.Server(t, nil, "another.test")}, NextProtos: config.NextProtos}
		go func() {
			for shown := config; ; {
				c, err := l.Accept()
				if err != nil {
					return
				}
				secure := tls.Server(c, shown)
				if secure.Handshake() != nil {
					c.Close()
					continue
				}
				shown = wrong
				go func() {
					serve(secure, "127.0.0.1")
					secure.Close()
				}()
			}
		}()
		o := &origin{port: port}
		rt := w.visitor(t, overH2, "allowed.test", port)
		ask(t, rt, "GET", o.url("allowed.test", "/public/one"), nil)
		r := ask(t, rt, "GET", o.url("allowed.test", "/public/two"), nil)
		r.refused(t, 502, policy.NetworkTLS)
		if !strings.Contains(r.body, `"retryable":false`) {
			t.Errorf("it may be tried again: %s", r.body)
		}
	})
}

// TestATunnelIsCutWithItsRequest, and recorded as cut like it: over HTTP/1 the
// two are one connection.
func TestATunnelIsCutWithItsRequest(t *testing.T) {
	w := newInspectWorld(t, bothPaths, nil)
	o := newSlowOrigin(t, w, false)
	begun(t, start(t, w.visitor(t, false, "allowed.test", o.port), "GET", o.url("allowed.test", "/goes"), nil))
	w.obey(t, onePath)
	soon(t, "the upstream learns of the cut", o.gone)
	w.closed(t)
	if n := w.count(t, ended("cut")); n != 2 {
		t.Errorf("%d flows are recorded as cut, want the tunnel and its request", n)
	}
}

// TestAnInspectedTunnelHasALifetime, wherever it stands then.
func TestAnInspectedTunnelHasALifetime(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, overH2 bool) {
		w := newLimitedWorld(t, inspectPolicy, Limits{Lifetime: time.Second}, nil)
		o := newSlowOrigin(t, w, overH2)
		config := &tls.Config{ServerName: "allowed.test", RootCAs: w.pool}
		if overH2 {
			config.NextProtos = []string{"h2"}
		}
		io.Copy(io.Discard, tls.Client(w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).Conn, config))
		w.closed(t)
		if n := w.count(t, ended("lifetime")); n != 1 {
			t.Errorf("%d flows are recorded to have lasted too long", n)
		}
	})
}
