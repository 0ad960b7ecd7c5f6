package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/egress/upstream"
	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/policy"
)

// An upstreamLab is an upstream proxy of a test. It leads every tunnel to one origin.
type upstreamLab struct {
	proxy  upstream.Proxy
	origin string

	mu    sync.Mutex
	asked []string // "host:port", with the password in front of it where there was one
}

func (l *upstreamLab) note(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, text)
}

func (l *upstreamLab) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.asked, " ")
}

// serveUpstream listens on loopback and hands each connection to handle.
func serveUpstream(t *testing.T, secure bool, handle func(net.Conn)) upstream.Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	p := upstream.Proxy{At: policy.Destination{Host: at.Addr().String(), Addr: at.Addr(), Port: at.Port()}}
	if secure {
		ca := testpki.New(t)
		p.TLS = &tls.Config{RootCAs: ca.Pool}
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{ca.Server(t, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })}})
	}
	var open sync.WaitGroup
	t.Cleanup(func() { l.Close(); open.Wait() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(10 * time.Second))
				handle(c)
			})
		}
	}()
	return p
}

// newUpstream serves one of the four kinds.
func newUpstream(t *testing.T, kind string) *upstreamLab {
	t.Helper()
	l := &upstreamLab{origin: originSaying(t, "hello")}
	socks := strings.HasPrefix(kind, "socks5")
	l.proxy = serveUpstream(t, kind == "https" || kind == "socks5+tls", func(c net.Conn) {
		in := bufio.NewReader(c)
		ask := l.answerHTTP
		if socks {
			ask = l.answerSOCKS
		}
		if !ask(c, in) {
			return
		}
		far, err := net.Dial("tcp", l.origin)
		if err != nil {
			return
		}
		defer far.Close()
		go func() { io.Copy(far, in); far.(*net.TCPConn).CloseWrite() }()
		io.Copy(c, far)
	})
	l.proxy.SOCKS = socks
	return l
}

func (l *upstreamLab) answerHTTP(c net.Conn, in *bufio.Reader) bool {
	r, err := http.ReadRequest(in)
	if err != nil {
		return false
	}
	if r.Method != http.MethodConnect {
		l.note(r.Method + " " + r.RequestURI)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
		return false
	}
	who, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
	l.note(string(who) + r.RequestURI)
	io.WriteString(c, "HTTP/1.1 200 Fine\r\nContent-Length: 5\r\n\r\n") // what is announced is no body
	return true
}

func (l *upstreamLab) answerSOCKS(c net.Conn, in *bufio.Reader) bool {
	who := ""
	take := func(n int) []byte { b := make([]byte, n); io.ReadFull(in, b); return b }
	methods := take(int(take(2)[1]))
	if methods[len(methods)-1] == 2 {
		c.Write([]byte{5, 2})
		user := take(int(take(2)[1]))
		who = string(user) + ":" + string(take(int(take(1)[0])))
		c.Write([]byte{1, 0})
	} else {
		c.Write([]byte{5, 0})
	}
	host := ""
	switch head := take(4); head[3] {
	case 1, 4:
		a, _ := netip.AddrFromSlice(take(map[byte]int{1: 4, 4: 16}[head[3]]))
		host = a.String()
	case 3:
		host = string(take(int(take(1)[0])))
	}
	port := take(2)
	l.note(fmt.Sprintf("%s%s:%d", who, host, int(port[0])<<8|int(port[1])))
	c.Write([]byte{5, 0, 0, 3, 4, 'h', 'e', 'r', 'e', 0, 80})
	return true
}

// throughUpstream opens a flow to two.test:443, which has the address 127.0.0.9, where nothing listens.
func throughUpstream(t *testing.T, p *upstream.Proxy) (*world, *Flow) {
	t.Helper()
	w := newWorld(t, policy.New(opinion(allow)))
	w.zone.addrs["two.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.9")}
	w.Route.Through(p)
	f, err := w.Open(t.Context(), peer, ask(t, "two.test:443"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(End{}); w.tasks.wait() })
	return w, f
}

// TestAnUpstreamProxyIsAskedForWhatWasDecided has each kind of proxy asked, for the decided
// address or the name, with and without a password.
func TestAnUpstreamProxyIsAskedForWhatWasDecided(t *testing.T) {
	for _, kind := range []string{"http", "https", "socks5", "socks5+tls"} {
		for _, byName := range []bool{false, true} {
			for _, signsIn := range []bool{false, true} {
				name := fmt.Sprintf("%s, by name %t, signs in %t", kind, byName, signsIn)
				l := newUpstream(t, kind)
				l.proxy.ByName = byName
				want, addr := "127.0.0.9:443", netip.MustParseAddr("127.0.0.9")
				if byName {
					want, addr = "two.test:443", netip.Addr{}
				}
				if signsIn {
					l.proxy.User, l.proxy.Password = "egressd", "geheim"
					want = "egressd:geheim" + want
				}
				w, f := throughUpstream(t, &l.proxy)
				if looked := w.zone.asked.Load(); (looked == 0) != byName {
					t.Errorf("%s: %d names were looked up", name, looked)
				}
				dialled, err := f.Dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				conn := dialled.(dialledConn)
				if got := talk(conn); got != "hellobye" {
					t.Errorf("%s: got %q", name, got)
				}
				if got := l.all(); got != want {
					t.Errorf("%s: it was asked for %q, not %q", name, got, want)
				}
				if f.dialled.Addr() != addr {
					t.Errorf("%s: the record has %v", name, f.dialled)
				}
				conn.Close()
			}
		}
	}
}

type dialledConn interface {
	net.Conn
	CloseWrite() error
}

// talk sends, ends its half, and reads to the end.
func talk(c dialledConn) string {
	c.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(c, "bye")
	c.CloseWrite()
	all, _ := io.ReadAll(c)
	return string(all)
}

// TestExceptionsGoDirectly, by name and by address, and never to the proxy itself.
func TestExceptionsGoDirectly(t *testing.T) {
	host, port, _ := net.SplitHostPort(originSaying(t, "hello"))
	l := newUpstream(t, "http")
	own, err := policy.ParsePattern("own.test:*")
	if err != nil {
		t.Fatal(err)
	}
	prefix, err := policy.ParsePattern("127.0.0.1:*")
	if err != nil {
		t.Fatal(err)
	}
	for says, row := range map[string]struct {
		except []policy.Pattern
		byName bool
		to     string
		direct bool
	}{
		"the name":                       {[]policy.Pattern{own}, false, "own.test:" + port, true},
		"the name, though by name":       {[]policy.Pattern{own}, true, "own.test:" + port, true},
		"its address":                    {[]policy.Pattern{prefix}, false, "own.test:" + port, true},
		"an address":                     {[]policy.Pattern{prefix}, true, "127.0.0.1:" + port, true},
		"a prefix is not for names":      {[]policy.Pattern{prefix}, true, "own.test:" + port, false},
		"another name":                   {[]policy.Pattern{own}, false, "other.test:" + port, false},
		"the proxy is no destination":    {[]policy.Pattern{prefix}, false, l.proxy.At.String(), false},
		"nor by a name that leads to it": {[]policy.Pattern{own}, false, fmt.Sprintf("own.test:%d", l.proxy.At.Port), false},
	} {
		w := newWorld(t, policy.New(opinion(allow)))
		for _, name := range []string{"own.test", "other.test"} {
			w.zone.addrs[name] = []netip.Addr{netip.MustParseAddr(host)}
		}
		p := l.proxy
		p.Except, p.ByName = row.except, row.byName
		w.Route.Through(&p)
		f, err := w.Open(t.Context(), peer, ask(t, row.to))
		if err != nil {
			t.Fatal(err)
		}
		before := l.all()
		conn, err := f.Dial(t.Context())
		isProxy := strings.HasSuffix(row.to, fmt.Sprintf(":%d", l.proxy.At.Port))
		if isProxy != (err != nil) {
			t.Errorf("%s: %v", says, err)
		}
		if conn != nil {
			conn.Close()
		}
		if direct := l.all() == before; direct != (row.direct || isProxy) {
			t.Errorf("%s: direct is %t", says, direct)
		}
		f.Close(End{})
	}
}

// TestTheNameOfAnUpstreamProxyIsKnownBeforeAnythingIsDialled: what leads to it is told apart by its addresses.
func TestTheNameOfAnUpstreamProxyIsKnownBeforeAnythingIsDialled(t *testing.T) {
	l := newUpstream(t, "http")
	w := newWorld(t, policy.New(opinion(allow)))
	p := l.proxy
	p.At = policy.Destination{Host: "proxy.test", Port: p.At.Port}
	w.Route.Through(&p)
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.9:443"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	_, err = f.Dial(t.Context())
	refusalOf(t, err, policy.NetworkUnreachable) // its name is not known
	w.zone.addrs["proxy.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	if err := w.Route.Find(t.Context()); err != nil || fmt.Sprint(w.Route.At()) != fmt.Sprintf("[127.0.0.1:%d]", p.At.Port) {
		t.Errorf("%v, %v", w.Route.At(), err)
	}
	conn, err := f.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// TestAnAbandonedTunnelOverTLSLeavesNothing ends tunnels in the middle, in each way.
func TestAnAbandonedTunnelOverTLSLeavesNothing(t *testing.T) {
	gone, over := make(chan struct{}, 10), make(chan struct{})
	p := serveUpstream(t, true, func(c net.Conn) {
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		time.Sleep(50 * time.Millisecond) // does not read meanwhile
		io.Copy(io.Discard, c)
		gone <- struct{}{}
		<-over // and does not close
	})
	w, f := throughUpstream(t, &p)
	for says, leave := range map[string]func(dialledConn){
		"at once":              func(c dialledConn) { c.Close() },
		"after half an end":    func(c dialledConn) { c.CloseWrite(); c.Close() },
		"with bytes under way": func(c dialledConn) { c.Write(make([]byte, 64<<10)); c.Close() },
	} {
		conn, err := f.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Keep(nil) // another Dial would close it
		leave(conn.(dialledConn))
		select {
		case <-gone:
		case <-time.After(8 * time.Second):
			t.Errorf("%s: the proxy was not told", says)
		}
	}
	ended := make(chan struct{})
	go func() { w.tasks.wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(2 * drainOfTest):
		t.Error("something goes on behind tunnels that ended")
	}
	close(over)
}

const drainOfTest = 5 * time.Second

// TestACertificateOfAnUpstreamProxyIsVerified for its host, by the roots.
func TestACertificateOfAnUpstreamProxyIsVerified(t *testing.T) {
	p := newUpstream(t, "https").proxy
	p.TLS = &tls.Config{RootCAs: testpki.New(t).Pool}
	_, f := throughUpstream(t, &p)
	_, err := f.Dial(t.Context())
	if r := refusalOf(t, err, policy.NetworkTLS); !strings.Contains(r.Note, "certificate of the upstream proxy") {
		t.Errorf("the note is %q", r.Note)
	}
}

// TestPlainHTTPForAnUpstreamProxy goes whole where the target holds what was decided.
func TestPlainHTTPForAnUpstreamProxy(t *testing.T) {
	for says, row := range map[string]struct {
		kind   string
		byName bool
		to     string
		whole  bool
	}{
		"a name, by address":  {"http", false, "two.test:80", false},
		"a name, by name":     {"https", true, "two.test:80", true},
		"an address":          {"http", false, "127.0.0.9:80", true},
		"an address to SOCKS": {"socks5", false, "127.0.0.9:80", false},
	} {
		l := newUpstream(t, row.kind)
		l.proxy.ByName, l.proxy.User, l.proxy.Password = row.byName, "egressd", "geheim"
		w, _ := throughUpstream(t, &l.proxy)
		f, err := w.Open(t.Context(), peer, ask(t, row.to))
		if err != nil {
			t.Fatal(err)
		}
		conn, by, err := f.DialHTTP(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if whole := by != nil; whole != row.whole || whole != (l.all() == "") || whole && by.Fields().Get("Proxy-Authorization") == "" {
			t.Errorf("%s: whole is %t, and it was asked %q", says, whole, l.all())
		}
		conn.Close()
		f.Close(End{})
	}
}

// TestAPolicyChangeReachesAWaitForTheUpstreamProxy cuts a flow between the proxy's two answers.
func TestAPolicyChangeReachesAWaitForTheUpstreamProxy(t *testing.T) {
	p := serveUpstream(t, false, func(c net.Conn) { io.Copy(io.Discard, c) })
	w, f := throughUpstream(t, &p)
	ctx, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer leave()
	began := time.Now()
	if _, err := f.Dial(ctx); err == nil || time.Since(began) > 3*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if err := w.SetPolicy(t.Context(), policy.New(opinion(deny)), "deny"); err != nil {
		t.Fatal(err)
	}
	_, err := f.Dial(t.Context())
	if err == nil || errors.As(err, new(*net.OpError)) {
		t.Errorf("got %v", err)
	}
}
