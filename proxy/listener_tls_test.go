package proxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/testpki"
	"github.com/egressd/egressd/record"
)

func openedBy(name string) func(record.Record) bool {
	return func(r record.Record) bool {
		return r.Sandbox == name && r.Decision != nil && r.Decision.Action == "allow"
	}
}

func TestTLSListenerKnowsCertificates(t *testing.T) {
	w, o := newTLSWorld(t, true, nil), echo(t)
	spiffe := w.signs.Client(t, func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/ci"}} })
	w.enter(t, w.signs.Client(t, nil, "ci.test")).send(tunnelTo(o, "")).established().send(opaque).expect(opaque)
	w.recorded(t, openedBy("cert"))
	w.enter(t, spiffe).send(tunnelTo(o, "")).established().send(opaque).expect(opaque)
	w.recorded(t, openedBy("spiffe"))
	w.enter(t, w.signs.Client(t, nil, "other.test")).send(tunnelTo(o, tokenField)).established().send(opaque).expect(opaque)
	w.recorded(t, openedBy("token"))
	common := w.signs.Client(t, func(c *x509.Certificate) { c.Subject.CommonName, c.DNSNames = "ci.test", []string{"*.test"} })
	for says, c := range map[string]*testTLSClient{
		"a name that is nobody's":                  w.enter(t, w.signs.Client(t, nil, "other.test")),
		"a common name and a wildcard":             w.enter(t, common),
		"a certificate's sandbox with another's t": w.enter(t, w.signs.Client(t, nil, "ci.test")),
	} {
		more := ""
		if strings.HasSuffix(says, " t") {
			more = tokenField
		}
		if got := c.send(tunnelTo(o, more)).rest(); !strings.HasPrefix(got, "HTTP/1.1 407 ") {
			t.Errorf("%s: answered %q", says, got)
		}
	}
}

func TestTLSListenerNeedsCertificates(t *testing.T) {
	w := newTLSWorld(t, true, nil)
	server := w.signs.Client(t, func(c *x509.Certificate) {
		c.DNSNames, c.ExtKeyUsage = []string{"ci.test"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	stuffed := w.signs.Client(t, nil, "ci.test")
	stuffed.Certificate = append(stuffed.Certificate, testpki.Heavy(t, 15_000, testpki.UnknownUse))
	for says, shown := range map[string]tls.Certificate{
		"none":                       {},
		"a good one and a large one": stuffed,
		"one that somebody signed":   testpki.New(t).Client(t, nil, "ci.test"),
		"one for servers":            server,
		"one that it signed itself":  {Certificate: testpki.SelfSigned(t, nil).Certificate, PrivateKey: testpki.SelfSigned(t, nil).PrivateKey},
	} {
		before := len(w.records(t))
		c := w.enter(t, shown)
		io.WriteString(c, "CONNECT allowed.test:443 HTTP/1.1\r\n\r\n") // may be too late already
		if got, err := io.ReadAll(c.in); len(got) > 0 || err == nil {
			t.Errorf("%s: answered %q, %v", says, got, err)
		}
		w.recorded(t, func(r record.Record) bool {
			return r.Seq >= int64(before) && r.Kind == record.KindRefused && (r.Decision.Class == "unknown-sandbox" || says == "one that it signed itself")
		})
	}
}

// TestTLSListenerWithoutCertificates is any listener, inside of TLS.
func TestTLSListenerWithoutCertificates(t *testing.T) {
	w, o := newTLSWorld(t, false, nil), echo(t)
	web := newOrigin(t, func(c net.Conn) {
		c.Read(make([]byte, 4096))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
	})
	w.enter(t).send(tunnelTo(o, tokenField)).established().send(opaque).expect(opaque)
	c := w.enter(t)
	for range 3 {
		c.send("GET http://allowed.test:" + web.port + "/ HTTP/1.1\r\nHost: allowed.test\r\n" + tokenField + "\r\n").established().expect("hi")
	}
	socks := w.enter(t)
	var port int
	fmt.Sscan(o.port, &port)
	socks.send("\x05\x01\x02").expect("\x05\x02").send("\x01\x05token\x01t").expect("\x01\x00")
	socks.send("\x05\x01\x00\x03\x0callowed.test" + string([]byte{byte(port >> 8), byte(port)})).expect("\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
	socks.send(opaque).expect(opaque)
	if got := w.enter(t, w.signs.Client(t, nil, "ci.test")).send(tunnelTo(o, "")).rest(); !strings.HasPrefix(got, "HTTP/1.1 407 ") {
		t.Errorf("a certificate that nobody verified is answered %q", got)
	}
}

func TestTLSListenerShowsItsOwnName(t *testing.T) {
	w := newTLSWorld(t, false, nil)
	for name, ok := range map[string]bool{"127.0.0.1": true, "localhost": true, "api.example.com": false, "127.0.0.2": false} {
		raw, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		err = tls.Client(raw, &tls.Config{RootCAs: w.trust, ServerName: name}).Handshake()
		if (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
		raw.Close()
	}
	raw, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if tls.Client(raw, &tls.Config{RootCAs: w.trust, ServerName: "localhost", MaxVersion: tls.VersionTLS12}).Handshake() == nil {
		t.Error("TLS 1.2 is spoken")
	}
}

// TestTLSHalves ends one half of a tunnel after the other.
func TestTLSHalves(t *testing.T) {
	w := newTLSWorld(t, false, nil)
	late := newOrigin(t, func(c net.Conn) {
		sent, _ := io.ReadAll(c)
		fmt.Fprintf(c, "%d bytes", len(sent))
	})
	c := w.enter(t)
	c.send(tunnelTo(late, tokenField)).established().send("\x00\x00\x00")
	if err := c.tls.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, orderly := c.end(); got != "3 bytes" || !orderly {
		t.Errorf("after the client's end: %q, orderly %v", got, orderly)
	}
	received := make(chan string, 1)
	early := newOrigin(t, func(c net.Conn) {
		io.WriteString(c, "bye")
		c.(*net.TCPConn).CloseWrite()
		got, _ := io.ReadAll(c)
		received <- string(got)
	})
	c = w.enter(t)
	c.send(tunnelTo(early, tokenField)).established()
	if got, orderly := c.end(); got != "bye" || !orderly {
		t.Errorf("the upstream's end: %q, orderly %v", got, orderly)
	}
	c.send("\x00more")
	c.tls.CloseWrite()
	if got := <-received; got != "\x00more" {
		t.Errorf("after its own end the upstream received %q", got)
	}
	w.recorded(t, ended("closed"))
}

// TestTLSEndsWithoutAWord has a client close its sending half below TLS: what it
// meant to send may not be complete, so it is not answered as if it were.
func TestTLSEndsWithoutAWord(t *testing.T) {
	w := newTLSWorld(t, false, nil)
	late := newOrigin(t, func(c net.Conn) {
		sent, _ := io.ReadAll(c)
		fmt.Fprintf(c, "%d bytes", len(sent))
	})
	c := w.enter(t)
	c.send(tunnelTo(late, tokenField)).established().send("\x00\x00\x00")
	c.raw.CloseWrite()
	if got, orderly := c.end(); got != "" || orderly {
		t.Errorf("answered %q, orderly %v", got, orderly)
	}
}

// TestTLSCutShort does not tell a client that it has everything where that is
// not so.
func TestTLSCutShort(t *testing.T) {
	w := newTLSWorld(t, false, nil)
	reset := newOrigin(t, func(c net.Conn) {
		io.WriteString(c, "some")
		c.Read(make([]byte, 1))
		c.(*net.TCPConn).SetLinger(0)
	})
	c := w.enter(t)
	c.send(tunnelTo(reset, tokenField)).established().expect("some").send("\x00")
	if got, orderly := c.end(); orderly {
		t.Errorf("an upstream that broke off looks as if it had ended: %q", got)
	}
	w.recorded(t, ended("reset"))
	o := echo(t)
	c = w.enter(t)
	c.send(tunnelTo(o, tokenField)).established().send(opaque).expect(opaque)
	w.Gate.Shut()
	if _, err := io.ReadAll(c.in); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a tunnel that is cut ends with %v", err)
	}
	w.recorded(t, ended("cut"))
}

// TestTLSLeavesWithoutAWord has clients go without saying that they do.
func TestTLSLeavesWithoutAWord(t *testing.T) {
	w, o := newTLSWorld(t, false, nil), echo(t)
	for range 3 {
		c := w.enter(t)
		c.send(tunnelTo(o, tokenField)).established().send(opaque).expect(opaque)
		c.raw.SetLinger(0)
		c.raw.Close()
		w.enter(t).raw.Close()
	}
	w.settles(t)
}

// settles waits until nothing of any connection is left.
func (w *tlsWorld) settles(t *testing.T) {
	t.Helper()
	left := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.conns) + len(w.handshakes) + w.connections.Count()
	}
	for deadline := time.Now().Add(30 * time.Second); left() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are left", left())
		}
	}
}

// TestTLSKeepsNoDescriptor counts what is open before and after.
func TestTLSKeepsNoDescriptor(t *testing.T) {
	w, o := newTLSWorld(t, false, nil), echo(t)
	use := func() {
		c := w.enter(t)
		c.send(tunnelTo(o, tokenField)).established().send(opaque).expect(opaque)
		c.tls.Close()
		w.enter(t).send(tunnelTo(o, "")).rest()
		w.enter(t).raw.Close()
	}
	use()
	w.settles(t)
	before := descriptors(t)
	for range 10 {
		use()
	}
	w.settles(t)
	for deadline := time.Now().Add(30 * time.Second); descriptors(t) > before+20; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors were open, and now %d", before, descriptors(t))
		}
	}
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestTLSHoldsBack has an upstream send to a client that does not read: at some
// point it has to wait, and when the client reads everything is there.
func TestTLSHoldsBack(t *testing.T) {
	const all = 1 << 30 // a kernel's own buffers may hold tens of megabytes of it
	w := newTLSWorld(t, false, nil)
	stuck := make(chan int, 1)
	flood := newOrigin(t, func(c net.Conn) {
		c.Read(make([]byte, 1))
		b, sent := make([]byte, 64<<10), 0
		for sent < all {
			c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			n, err := c.Write(b)
			if sent += n; err != nil {
				break
			}
		}
		stuck <- sent
	})
	c := w.enter(t)
	c.raw.SetReadBuffer(64 << 10)
	c.send(tunnelTo(flood, tokenField)).established().send("\x00")
	sent := <-stuck
	if sent >= all/2 {
		t.Errorf("%d bytes went to a client that reads none", sent)
	}
	if got, err := io.Copy(io.Discard, c.in); got != int64(sent) || err != nil {
		t.Errorf("%d of %d bytes arrived, %v", got, sent, err)
	}
}

// TestTLSClientThatTakesNothing is given up like any other.
func TestTLSClientThatTakesNothing(t *testing.T) {
	t.Parallel()
	w := newTLSWorld(t, false, func(s *Server) { s.Limits.Idle = time.Second })
	flood := newOrigin(t, func(c net.Conn) {
		b := make([]byte, 64<<10)
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	c := w.enter(t)
	c.send(tunnelTo(flood, tokenField)).established()
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindClose && r.Outcome == "idle-timeout" })
	for deadline := time.Now().Add(30 * time.Second); w.connections.Count() > 0; time.Sleep(time.Millisecond) { // which is given back behind the record
		if time.Now().After(deadline) {
			t.Fatal("the connection still counts")
		}
	}
	c.raw.Close()
	w.settles(t)
}

func TestTLSHandshakesAreBounded(t *testing.T) {
	w := newTLSWorld(t, false, func(s *Server) { s.Limits.Hello = time.Second })
	for says, first := range map[string]string{"nothing": "", "half a record": "\x16\x03\x01", "HTTP": "GET http://allowed.test/ HTTP/1.1\r\n\r\n"} {
		before := len(w.records(t))
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(c, first)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: nobody ended it", says)
		}
		c.Close()
		w.settles(t)
		refused := 0
		for _, r := range w.records(t)[before:] {
			if r.Kind == record.KindRefused && r.Decision.Class == "malformed-request" {
				refused++
			}
		}
		if want := min(1, len(first)); refused != want {
			t.Errorf("%s: %d records, want %d", says, refused, want)
		}
	}
}

func TestTLSHandshakesOfOneAddressAreBounded(t *testing.T) {
	w := newTLSWorld(t, false, nil)
	var held []net.Conn
	for range handshakesOfSource {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	more, err := net.Dial("tcp", w.addr)
	if err == nil {
		more.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = more.Read(make([]byte, 1))
		more.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("one handshake more ends with %v", err)
	}
	w.recorded(t, func(r record.Record) bool {
		return r.Kind == record.KindRefused && r.Decision.Class == "too-many-flows"
	})
	elsewhere := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	raw, err := elsewhere.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := tls.Client(raw, &tls.Config{RootCAs: w.trust, ServerName: "127.0.0.1"}).Handshake(); err != nil {
		t.Errorf("another address: %v", err)
	}
	for _, c := range append(held, raw) {
		c.Close()
	}
	w.settles(t)
}

// TestManyAddressesKeepNobodyOut has one host hold as many handshakes as there may
// be, from as many addresses as it takes. Another gets in, in the place of the
// oldest of an address that has many.
func TestManyAddressesKeepNobodyOut(t *testing.T) {
	w := newTLSWorld(t, false, nil)
	from := func(last byte) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, last)}}
		c, err := d.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for i := range handshakesMost {
		from(byte(10 + i%16))
	}
	if err := tls.Client(from(9), &tls.Config{RootCAs: w.trust, ServerName: "127.0.0.1"}).Handshake(); err != nil {
		t.Errorf("another host: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for from, under := range w.handshakes {
		if want := handshakesMost / 16; len(under) > want {
			t.Errorf("%s has %d handshakes under way, want %d at most", from, len(under), want)
		}
	}
}

// TestUnixPeerIsItsUser identifies this process by its uid, and records it.
func TestUnixPeerIsItsUser(t *testing.T) {
	w, o := newTLSWorld(t, false, nil), echo(t)
	raw, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(20 * time.Second))
	c := &testClient{raw, bufio.NewReader(raw), t}
	c.send(tunnelTo(o, "")).established().send(opaque).expect(opaque)
	r := w.recorded(t, openedBy("user"))
	exe, _ := os.Executable()
	if r.Process == nil || r.Process.PID != os.Getpid() || r.Process.Exe != exe || len(r.Process.Argv) > 0 {
		t.Errorf("the record says %+v of this process", r.Process)
	}
	other, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetDeadline(time.Now().Add(20 * time.Second))
	got := (&testClient{other, bufio.NewReader(other), t}).send(tunnelTo(o, tokenField)).rest()
	if !strings.HasPrefix(got, "HTTP/1.1 407 ") {
		t.Errorf("another's token is answered %q", got)
	}
}
