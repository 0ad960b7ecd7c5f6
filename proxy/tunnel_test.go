package proxy

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

const established = "HTTP/1.1 200 Connection established\r\n\r\n"

func connectTo(host, port string) string {
	return fmt.Sprintf("CONNECT %s:%s HTTP/1.1\r\nHost: %s:%s\r\n\r\n", host, port, host, port)
}

func hello(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../testdata/clienthello/" + name + ".bin")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestConnectCarriesAHelloThatNamesTheHost(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	first := hello(t, "base-allowed")
	w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(first).expect(first).Close()
	r := w.recorded(t, ended("closed"))
	if r.TLS == nil || r.TLS.SNI != "allowed.test" || r.Bytes.Up != int64(len(first)) || r.Dst.Addr != "127.0.0.1" {
		t.Errorf("recorded %+v", r)
	}
}

func TestWhatIsSentWithTheConnectIsNotLost(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	first := hello(t, "base-allowed")
	w.dial(t).send(connectTo("ALLOWED.test.", o.port) + first).expect(established).expect(first)
}

func TestAHelloInPiecesIsJudgedWhole(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), newWitness(t, "")
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
	first := hello(t, "frag-rec-5") // names evil.test, five bytes a record
	for i := range first {
		if _, err := io.WriteString(c, first[i:i+1]); err != nil {
			break
		}
	}
	if got := c.rest(); got != string(accessDenied) {
		t.Errorf("the client read %q", got)
	}
	w.recorded(t, ended("name-mismatch"))
	if o.got() != "" {
		t.Errorf("the upstream got %q", o.got())
	}
}

// TestHostileHellosReachNobody sends every fixture to a tunnel for
// allowed.test. Those that name it honestly pass unchanged, all others end
// before the upstream has a byte.
func TestHostileHellosReachNobody(t *testing.T) {
	honest := map[string]bool{"base-allowed": true, "sni-upper": true, "pad-pq": true, "early-data": true}
	files, err := os.ReadDir("../testdata/clienthello")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".bin")
		if !ok {
			continue
		}
		first := hello(t, name)
		if !strings.Contains("\x16\x15\x80", first[:1]) { // what is no TLS at all may pass on a port like these; the e2e suite tries it on 443
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, o := newWorld(t, openPolicy, func(s *Server) { s.Limits.Hello = 2 * time.Second }), newWitness(t, "ok")
			c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(first)
			if honest[name] {
				c.expect("ok")
				if o.got() != first {
					t.Error("the hello was changed on the way")
				}
				return
			}
			c.rest()
			if o.got() != "" {
				t.Errorf("the upstream got %d bytes", len(o.got()))
			}
		})
	}
}

func TestADeniedConnectIsToldWhy(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	got := w.dial(t).send(connectTo("evil.test", "443")).rest()
	r := w.recorded(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Class == "default-deny" })
	for _, want := range []string{
		"HTTP/1.1 403 Blocked by egressd: evil.test:443 default-deny (" + r.Flow + ")\r\n",
		"\r\nContent-Type: application/problem+json\r\n",
		"\r\nProxy-Status: egressd; error=http_request_denied; details=\"default-deny; " + r.Flow + "\"\r\n",
		"\r\nX-Proxy-Error: blocked-by-allowlist\r\nX-Egressd-Id: " + r.Flow + "\r\nCache-Control: no-store\r\nConnection: close\r\n",
		`"class":"default-deny","id":"` + r.Flow + `","destination":"evil.test:443","method":"CONNECT","rule":"default","retryable":false`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q\nis not in\n%s", want, got)
		}
	}
}

func TestRepliesSuitTheirReader(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	ask := func(field string) string {
		return w.dial(t).send("GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n" + field + "\r\n\r\n").rest()
	}
	for field, want := range map[string]string{
		"User-Agent: git/2.39":                        "Content-Type: text/plain",
		"Accept: text/html,*/*;q=0.8":                 "Content-Type: text/html",
		"Accept: */*\r\nUser-Agent: pip":              "Content-Type: application/problem+json",
		"Accept: application/json, text/event-stream": "HTTP/1.1 451 Blocked by egressd: ", // to MCP clients 403 means: log in
		"Accept: application/json":                    "HTTP/1.1 403 Blocked by egressd: ",
	} {
		if got := ask(field); !strings.Contains(got, want) {
			t.Errorf("%q was answered with %s", field, got)
		}
	}
}

func TestRefusedConnectionsAreTold(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	got := w.dial(t).send(connectTo("allowed.test", port)).rest()
	if !strings.HasPrefix(got, "HTTP/1.1 502 Failed in egressd: ") || !strings.Contains(got, `"retryable":true`) {
		t.Errorf("answered %s", got)
	}
	w.recorded(t, ended("network-refused"))
}

func TestMalformedHeadsAreRecordedWithoutTheirSecrets(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	for _, head := range []string{
		"CONNECT allowed.test:0443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT evil.test\x00.allowed.test:443 HTTP/1.1\r\n\r\n",
		"GET http://me:hunter2@allowed.test/?key=hunter2 HTTP/1.1\nHost: x\r\nAuthorization : Bearer hunter2\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: allowed.test\r\nCookie: hunter2\r\n\r\n",
	} {
		if got := w.dial(t).send(head).rest(); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%q was answered with %q", head, got)
		}
	}
	refused := 0
	for _, r := range w.records(t) {
		if r.Kind == record.KindRefused {
			refused++
		}
	}
	text, err := os.ReadFile(w.log + "/00000001.log")
	if err != nil || refused != 4 || bytes.Contains(text, []byte("hunter2")) {
		t.Errorf("%d refused records, %v, in\n%s", refused, err, text)
	}
}

func TestHeadLimits(t *testing.T) {
	w := newWorld(t, openPolicy, func(s *Server) { s.Limits.HeadBytes, s.Limits.HeadFields = 2000, 10 })
	long := "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\nX: " + strings.Repeat("x", 3000) + "\r\n\r\n"
	many := "GET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n" + strings.Repeat("X: x\r\n", 20) + "\r\n"
	for _, head := range []string{long, many} {
		if got := w.dial(t).send(head).rest(); !strings.HasPrefix(got, "HTTP/1.1 431 ") {
			t.Errorf("answered %q", got)
		}
	}
	w = newWorld(t, openPolicy, func(s *Server) { s.Limits.Head = 300 * time.Millisecond })
	begun := time.Now()
	if got := w.dial(t).send("GET http://al").rest(); !strings.HasPrefix(got, "HTTP/1.1 400 ") || time.Since(begun) > 9*time.Second { // of the 10 that it has by default
		t.Errorf("a slow head was answered with %q after %s", got, time.Since(begun))
	}
}

func TestConnectionsAreLimited(t *testing.T) {
	w := newWorld(t, openPolicy, func(s *Server) { s.Limits.Connections = 4 }) // of which one sandbox has half
	o := echo(t)
	for range 2 {
		w.dial(t).send(connectTo("allowed.test", o.port)).expect(established)
	}
	if got := w.dial(t).send(connectTo("allowed.test", o.port)).rest(); !strings.HasPrefix(got, "HTTP/1.1 429 ") {
		t.Errorf("answered %q", got)
	}
}

func TestHalfCloseOfTheClient(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	o := newOrigin(t, func(c net.Conn) {
		b, _ := io.ReadAll(c)
		fmt.Fprintf(c, "got %d", len(b))
	})
	first := hello(t, "base-allowed")
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(first)
	c.Conn.(*net.TCPConn).CloseWrite()
	if got := c.rest(); got != fmt.Sprintf("got %d", len(first)) {
		t.Errorf("read %q", got)
	}
}

func TestAPolicyChangeCutsATunnel(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	first := hello(t, "base-allowed")
	c := w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(first).expect(first)
	parsed, err := file.Parse("b.yaml", []byte("version: 1\nallow: [other.test]\nunsafe_allow: [\"127.0.0.1:*\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parsed.Compile(file.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Gate.SetPolicy(t.Context(), p, "host removed"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it was not cut")
	}
	if r := w.recorded(t, ended("cut")); r.Decision.Class != "default-deny" || r.Decision.Policy != p.Digest() {
		t.Errorf("recorded %+v", r.Decision)
	}
}

const socksHello = "\x05\x01\x00"

func socksTo(host, port string) string {
	p := netip.MustParseAddrPort("127.0.0.1:" + port).Port()
	return "\x05\x01\x00\x03" + string(rune(len(host))) + host + string([]byte{byte(p >> 8), byte(p)})
}

func TestSOCKS(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	first := hello(t, "base-allowed")
	t.Run("carries, even what is sent before the replies", func(t *testing.T) {
		w.dial(t).send(socksHello + socksTo("allowed.test", o.port) + first).
			expect("\x05\x00").expect(string(socksReply(answer.SOCKSOK))).expect(first)
	})
	for name, row := range map[string]struct {
		request string
		reply   byte
	}{
		"a denied name":              {socksTo("evil.test", "443"), answer.SOCKSRefused},
		"an address as a name":       {socksTo("10.0.0.5", "443"), answer.SOCKSRefused},
		"an IPv6 address as a name":  {socksTo("::ffff:10.0.0.5", "443"), answer.SOCKSRefused},
		"a NUL in the name":          {socksTo("evil.test\x00.allowed.test", "443"), answer.SOCKSAddress},
		"an empty name":              {socksTo("", "443"), answer.SOCKSAddress},
		"BIND":                       {strings.Replace(socksTo("allowed.test", "443"), "\x05\x01", "\x05\x02", 1), answer.SOCKSCommand},
		"UDP ASSOCIATE":              {strings.Replace(socksTo("allowed.test", "443"), "\x05\x01", "\x05\x03", 1), answer.SOCKSCommand},
		"a private address":          {"\x05\x01\x00\x01\x0a\x00\x00\x05\x01\xbb", answer.SOCKSRefused},
		"an unknown kind of address": {"\x05\x01\x00\x09allowed", answer.SOCKSAddress},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.dial(t).send(socksHello + row.request).expect("\x05\x00").rest()
			if len(got) != 10 || got[1] != row.reply {
				t.Errorf("answered %q, want reply %d", got, row.reply)
			}
		})
	}
	for _, r := range w.records(t) {
		if r.Kind == record.KindRefused && !strings.HasPrefix(r.Raw, "\x05") {
			t.Errorf("refused without the bytes that were: %+v", r)
		}
	}
}

func withToken(s *Server) {
	if err := s.Sandboxes.Set([]sandbox.Entry{{Name: "ci", Token: "right"}}); err != nil {
		panic(err)
	}
}

func TestCredentials(t *testing.T) {
	w, o := newWorld(t, openPolicy+"sandboxes: [{name: ci, token_file: ci.token}]\n", withToken), echo(t)
	with := func(userpass string) string {
		return "CONNECT allowed.test:" + o.port + " HTTP/1.1\r\nProxy-Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte(userpass)) + "\r\nHost: x\r\n\r\n"
	}
	w.dial(t).send(with("ci:right")).expect(established)
	if r := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindOpen }); r.Sandbox != "ci" {
		t.Errorf("recorded %+v", r)
	}
	begun := time.Now()
	for range 2 {
		if got := w.dial(t).send(with("ci:wrong")).rest(); !strings.HasPrefix(got, "HTTP/1.1 407 ") || !strings.Contains(got, "Proxy-Authenticate: Basic") {
			t.Errorf("answered %q", got)
		}
	}
	if time.Since(begun) < 700*time.Millisecond {
		t.Error("wrong passwords were answered without a delay")
	}
	if got := w.dial(t).send(connectTo("allowed.test", o.port)).rest(); !strings.HasPrefix(got, "HTTP/1.1 407 ") {
		t.Errorf("without credentials: %q", got)
	}
	if got := w.dial(t).send(socksHello).rest(); got != "\x05\xff" {
		t.Errorf("SOCKS without credentials: %q", got)
	}
	if got := w.dial(t).send("\x05\x01\x02").expect("\x05\x02").send("\x01\x02ci\x05wrong").rest(); got != "\x01\x01" {
		t.Errorf("SOCKS with a wrong password: %q", got)
	}
	w.dial(t).send("\x05\x01\x02").expect("\x05\x02").send("\x01\x02ci\x05right").expect("\x01\x00").
		send(socksTo("allowed.test", o.port)).expect(string(socksReply(answer.SOCKSOK)))
}

func TestUnixSockets(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	raw, err := net.Dial("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	first := hello(t, "base-allowed")
	io.WriteString(raw, connectTo("allowed.test", o.port)+first)
	raw.SetReadDeadline(time.Now().Add(30 * time.Second))
	got := make([]byte, len(established)+len(first))
	if _, err := io.ReadFull(raw, got); err != nil || string(got) != established+first {
		t.Errorf("read %q, %v", got, err)
	}
}

// TestATunnelEndsWithItsLifetime keeps tunnels busy until they are closed.
func TestATunnelEndsWithItsLifetime(t *testing.T) {
	t.Parallel()
	w, o := newWorld(t, openPolicy, func(s *Server) { s.Limits.Lifetime = time.Second }), echo(t)
	first := hello(t, "base-allowed")
	for via, open := range map[string][2]string{
		"connect": {connectTo("allowed.test", o.port), established},
		"socks5":  {socksHello + socksTo("allowed.test", o.port), "\x05\x00" + string(socksReply(answer.SOCKSOK))},
	} {
		c := w.dial(t).send(open[0]).expect(open[1]).send(first).expect(first)
		for one := []byte{0}; ; {
			if _, err := c.Write(one); err != nil {
				break
			}
			if _, err := io.ReadFull(c.in, one); err != nil {
				break
			}
		}
		r := w.recorded(t, func(r record.Record) bool { return r.Via == via && ended("lifetime")(r) })
		if r.Bytes.Up <= int64(len(first)) {
			t.Errorf("%s: recorded %+v", via, r.Bytes)
		}
	}
}

func TestShutdownWaitsThenCuts(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	first := hello(t, "base-allowed")
	w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(first).expect(first)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := w.Shutdown(ctx); err == nil {
		t.Error("Shutdown says that nothing was cut")
	}
	if _, err := net.Dial("tcp", w.addr); err == nil {
		t.Error("the listener is still open")
	}
	w.recorded(t, ended("cut"))
}

func TestManyClientsShareAListener(t *testing.T) {
	w, o := newWorld(t, openPolicy, nil), echo(t)
	first := hello(t, "base-allowed")
	var clients sync.WaitGroup
	for range 30 {
		clients.Go(func() {
			w.dial(t).send(connectTo("allowed.test", o.port)).expect(established).send(first).expect(first).Close()
		})
	}
	clients.Wait()
}
