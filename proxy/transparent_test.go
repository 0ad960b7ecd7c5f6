//go:build linux

package proxy

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// captured connects as a program whose connection to somewhere is captured.
func (w *world) captured(t *testing.T, to netip.AddrPort) *testClient {
	t.Helper()
	return w.capturedBy(t, "captured", to)
}

// capturedBy is captured, by a listener with a name.
func (w *world) capturedBy(t *testing.T, listener string, to netip.AddrPort) *testClient {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own := l.Addr().(*net.TCPAddr).AddrPort()
	go w.ServeTransparent(l, listener, func(int) (netip.AddrPort, error) { return to, nil }) // until the world ends
	c, err := net.Dial("tcp", own.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return &testClient{c, bufio.NewReader(c), t}
}

// named returns the address that stands for a name, with a port.
func (w *world) named(t *testing.T, name, port string) netip.AddrPort {
	t.Helper()
	a, err := w.Gate.Names.Bind(t.Context(), sandbox.Peer{}, policy.DNSQuery{Name: name, Type: "A"})
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(a.IPv4, uint16(n))
}

// opened waits for the record that decides a connection to host.
func (w *world) opened(t *testing.T, host string) record.Record {
	t.Helper()
	return w.recorded(t, func(r record.Record) bool {
		return r.Via == string(policy.ViaTransparent) && r.Decision != nil && r.Dst != nil && r.Dst.Host == host
	})
}

func TestACapturedConnectionGoesToTheNameOfItsAddress(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	up := newOrigin(t, func(c net.Conn) {
		io.WriteString(c, "220 who is there\n")
		io.Copy(c, c)
	})
	c := w.captured(t, w.named(t, "allowed.test", up.port))
	c.expect("220 who is there\n").send("EHLO me\n").expect("EHLO me\n").Close()
	end := w.recorded(t, ended("closed"))
	if end.Via != "transparent" || end.Dst.Host != "allowed.test" || end.Dst.Addr != "127.0.0.1" {
		t.Errorf("recorded %+v %+v", end, end.Dst)
	}
}

// TestACapturedNameIsHeldToItsServerName has the program say another name in TLS
// than the one it asked the name server for.
func TestACapturedNameIsHeldToItsServerName(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	up := newWitness(t, "")
	got := w.captured(t, w.named(t, "allowed.test", up.port)).send(hello(t, "base-evil")).rest()
	if got != string(accessDenied) || up.got() != "" {
		t.Errorf("the client read %q, the upstream %q", got, up.got())
	}
	w.recorded(t, ended(string(policy.NameMismatch)))
}

// TestACapturedAddressIsForTheNameThatItsBytesClaim connects to bare addresses.
func TestACapturedAddressIsForTheNameThatItsBytesClaim(t *testing.T) {
	for _, row := range []struct {
		says, to, sends, host, class, answer string
	}{
		{"a server name", "192.0.2.1:443", "hello base-evil", "evil.test", "default-deny", string(accessDenied)},
		{"a server name in upper case, which is allowed and cannot be reached", "192.0.2.1:443", "hello sni-upper", "allowed.test", "", ""},
		{"a server name that is an address", "192.0.2.1:443", "hello sni-ipv4", "192.0.2.1", "address-denied", string(accessDenied)},
		{"a server name on a port of its own", "192.0.2.1:8443", "hello base-evil", "evil.test", "default-deny", string(accessDenied)},
		{"a host", "192.0.2.1:80", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "evil.test", "default-deny", "HTTP/1.1 403 Blocked by egressd: evil.test:80 default-deny"},
		{"a host with the port", "192.0.2.1:8080", "GET / HTTP/1.1\r\nHost: evil.test:8080\r\n\r\n", "evil.test", "default-deny", "HTTP/1.1 403 Blocked by egressd: evil.test:8080"},
		{"the whole URL", "192.0.2.1:80", "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "evil.test", "default-deny", "HTTP/1.1 403 Blocked by egressd: evil.test:80"},
		{"no host", "192.0.2.1:80", "GET / HTTP/1.0\r\n\r\n", "192.0.2.1", "address-denied", "HTTP/1.1 403 Blocked by egressd: 192.0.2.1:80"},
		{"the address as the host", "192.0.2.1:80", "GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", "192.0.2.1", "address-denied", "HTTP/1.1 403 Blocked by egressd: 192.0.2.1:80"},
		{"ssh", "192.0.2.1:2222", "SSH-2.0-x\r\n", "192.0.2.1", "address-denied", "SSH-2.0-egressd\r\n"},
		{"neither", "192.0.2.1:5432", "\x00\x00\x00\x08\x04\xd2\x16\x2f", "192.0.2.1", "address-denied", ""},
		{"HTTP on the port of TLS", "192.0.2.1:443", "GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n", "192.0.2.1", "address-denied", ""},
		{"nothing at all", "192.0.2.1:80", "", "192.0.2.1", "address-denied", ""},
	} {
		t.Run(row.says, func(t *testing.T) {
			w := newWorld(t, openPolicy, nil)
			c := w.captured(t, netip.MustParseAddrPort(row.to))
			if name, ok := strings.CutPrefix(row.sends, "hello "); ok {
				row.sends = hello(t, name)
			}
			c.send(row.sends)
			if row.sends == "" {
				c.Conn.(*net.TCPConn).CloseWrite()
			}
			got := c.rest()
			if !strings.HasPrefix(got, row.answer) || row.answer == "" && got != "" {
				t.Errorf("read %q, want %q", got, row.answer)
			}
			if r := w.opened(t, row.host); r.Decision.Class != row.class {
				t.Errorf("recorded %+v", r.Decision)
			}
		})
	}
}

// TestADeniedClientThatWaitsForItsServerIsAnsweredSoon has a client of a database, at an address that no rule names, say
// nothing.
func TestADeniedClientThatWaitsForItsServerIsAnsweredSoon(t *testing.T) {
	w := newWorld(t, openPolicy, func(s *Server) { s.Limits.Hello = time.Minute })
	began := time.Now()
	got := w.captured(t, netip.MustParseAddrPort("192.0.2.1:3306")).rest()
	if took := time.Since(began); took > 30*time.Second || got != "" {
		t.Errorf("it waited %s and read %q", took, got)
	}
	if r := w.opened(t, "192.0.2.1"); r.Decision.Class != string(policy.AddressDenied) {
		t.Errorf("recorded %+v", r.Decision)
	}
}

// addressPolicy allows addresses by themselves.
const addressPolicy = `version: 1
allow: [{host: "192.0.2.1:*", tls: any}]
unsafe_allow: ["127.0.0.1:*"]
`

// TestARequestThatNamesAnotherServerIsRecordedWithBoth: the destination, and the server that the
// request claims.
func TestARequestThatNamesAnotherServerIsRecordedWithBoth(t *testing.T) {
	o := webOrigin(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s %s went up", r.Host, r.RequestURI) })
	captured := func(t *testing.T, w *world) *testClient {
		return w.captured(t, netip.MustParseAddrPort("192.0.2.1:80"))
	}
	tunnel := func(t *testing.T, w *world) *testClient {
		return w.dial(t).send(connectTo("127.0.0.1", o.port)).expect(established)
	}
	for says, row := range map[string]struct {
		enter                func(*testing.T, *world) *testClient
		target, host, claims string
	}{
		"captured, another port":            {captured, "/", "evil.test:81", "evil.test:81"},
		"captured, another address":         {captured, "/", "192.0.2.2", "192.0.2.2:80"},
		"captured, loopback":                {captured, "/", "[::1]", "[::1]:80"},
		"captured, the URL of another port": {captured, "http://evil.test:81/", "evil.test", "evil.test:81"},
		"in a tunnel, a name":               {tunnel, "/", "evil.test", "evil.test:" + o.port},
		"in a tunnel, another address":      {tunnel, "/", "192.0.2.2", "192.0.2.2:" + o.port},
		"in a tunnel, the URL of a name":    {tunnel, "http://evil.test/", "evil.test", "evil.test:80"},
		"in a tunnel, userinfo":             {tunnel, "/", "secret@evil.test", ""},
	} {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t, addressPolicy, nil)
			got := row.enter(t, w).send("GET " + row.target + " HTTP/1.1\r\nHost: " + row.host + "\r\n\r\n").rest()
			if row.claims == "" {
				if !strings.HasPrefix(got, "HTTP/1.1 400 ") {
					t.Errorf("read %q", got)
				}
				return
			}
			r := w.recorded(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Action == "deny" })
			if !strings.HasPrefix(got, "HTTP/1.1 421 ") || r.Decision.Class != string(policy.NameMismatch) {
				t.Errorf("read %q, recorded %+v", got, r.Decision)
			}
			if r.Dst == nil || r.HTTP == nil || r.HTTP.Authority != row.claims || r.Dst.Host != "192.0.2.1" && r.Dst.Host != "127.0.0.1" {
				t.Errorf("recorded %+v %+v", r.Dst, r.HTTP)
			}
		})
	}
}

// TestAClaimedHostIsOneHost.
func TestAClaimedHostIsOneHost(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	got := w.captured(t, netip.MustParseAddrPort("192.0.2.1:80")).send("GET / HTTP/1.1\r\nHost: a b\r\n\r\n").rest()
	if !strings.HasPrefix(got, "HTTP/1.1 400 ") {
		t.Errorf("read %q", got)
	}
}

// TestACapturedHelloLeavesTheNameThatItClaims, also one that is no name, whether or not the
// policy allows the address.
func TestACapturedHelloLeavesTheNameThatItClaims(t *testing.T) {
	for file, row := range map[string]struct{ sni, class string }{
		"sni-ipv4":         {"127.0.0.1", "name-mismatch"},
		"sni-trailing-dot": {"allowed.test.", "not-tls"},
		"sni-nul-suffix":   {"evil.test\x00.allowed.test", "not-tls"},
		"sni-two-names-AE": {"allowed.test, evil.test", "not-tls"},
		"sni-dup-ext-AE":   {"allowed.test", "not-tls"},
		"sni-256":          {"", "not-tls"},
	} {
		for _, text := range []string{openPolicy, addressPolicy} {
			w := newWorld(t, text, nil)
			w.captured(t, netip.MustParseAddrPort("192.0.2.1:443")).send(hello(t, file)).rest()
			class := row.class
			if text == openPolicy {
				class = "address-denied"
			}
			r := w.recorded(t, func(r record.Record) bool { return r.Decision != nil && r.Decision.Action == "deny" })
			if r.TLS == nil || row.sni != "" && r.TLS.SNI != row.sni || r.TLS.SNI == "" || r.Decision.Class != class {
				t.Errorf("%s: recorded %+v %+v", file, r.TLS, r.Decision)
			}
		}
	}
}

// TestAClaimIsResolvedByTheGate has a program claim an allowed name at an address
// of its own choice: the connection goes where the gate finds the name.
func TestAClaimIsResolvedByTheGate(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	up := newWitness(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	to := netip.MustParseAddrPort("192.0.2.1:" + up.port)
	got := w.captured(t, to).send("GET / HTTP/1.1\r\nHost: allowed.test:" + up.port + "\r\nConnection: close\r\n\r\n").rest()
	if !strings.HasSuffix(got, "\r\n\r\nok") {
		t.Errorf("read %q", got)
	}
	if r := w.opened(t, "allowed.test"); r.Kind != record.KindRequest || r.HTTP == nil {
		t.Errorf("recorded %+v", r)
	}
}

func TestADeniedNameIsTold(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ says, port, sends, answer string }{
		{"TLS", "443", "hello base-evil", string(accessDenied)},
		{"TLS on another port", "8443", "hello base-evil", string(accessDenied)},
		{"HTTP", "80", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "HTTP/1.1 403 Blocked by egressd: evil.test:80 default-deny"},
		{"HTTP on another port", "8080", "GET / HTTP/1.1\r\nHost: evil.test:8080\r\nAccept: text/html\r\n\r\n", "HTTP/1.1 403 Blocked by egressd: evil.test:8080 default-deny"},
		{"ssh", "22", "SSH-2.0-OpenSSH\r\n", "SSH-2.0-egressd\r\n"},
		{"an ssh client that waits", "22", "", "SSH-2.0-egressd\r\n"},
		{"ssh on the port of TLS", "443", "SSH-2.0-OpenSSH\r\n", "SSH-2.0-egressd\r\n"},
		{"Redis", "6379", "*1\r\n$4\r\nPING\r\n", "-ERR Blocked by egressd: evil.test:6379 default-deny"},
		{"PostgreSQL, for TLS", "5432", "\x00\x00\x00\x08\x04\xd2\x16\x2f", ""},
		{"PostgreSQL", "5432", "\x00\x00\x00\x0f\x00\x03\x00\x00user\x00a\x00", "E\x00"},
		{"PostgreSQL, to cancel", "5432", "\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x01", ""},
		{"what begins as Redis", "6379", "*12345678\r\n$4\r\nPING\r\n", ""},
		{"SMTP", "25", "", "554 5.7.1 Blocked by egressd: evil.test:25 default-deny"},
		{"submission", "587", "", "554 5.7.1 Blocked by egressd: evil.test:587 default-deny"},
		{"FTP", "21", "", "421 Blocked by egressd: evil.test:21 default-deny"},
		{"IMAP", "143", "", "* BYE Blocked by egressd: evil.test:143 default-deny"},
		{"POP3", "110", "", "-ERR Blocked by egressd: evil.test:110 default-deny"},
		{"another protocol", "2525", "EHLO me\r\nMAIL FROM:<me@sandbox.test>\r\n", ""},
	} {
		t.Run(row.says, func(t *testing.T) {
			w := newWorld(t, openPolicy, nil)
			c := w.captured(t, w.named(t, "evil.test", row.port))
			if name, ok := strings.CutPrefix(row.sends, "hello "); ok {
				row.sends = hello(t, name)
			}
			got := c.send(row.sends).rest()
			if !strings.HasPrefix(got, row.answer) || row.answer == "" && got != "" {
				t.Errorf("read %q, want %q", got, row.answer)
			}
			if r := w.opened(t, "evil.test"); r.Decision.Class != string(policy.DefaultDeny) {
				t.Errorf("recorded %+v", r.Decision)
			}
		})
	}
}

// TestTheGoodbyeIsAMessageOfSSH takes the answer to an ssh client apart.
func TestTheGoodbyeIsAMessageOfSSH(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	got := w.captured(t, w.named(t, "evil.test", "22")).send("SSH-2.0-x\r\n").rest()
	packet := []byte(strings.TrimPrefix(got, "SSH-2.0-egressd\r\n"))
	if len(packet) < 16 || len(packet)%8 != 0 || int(binary.BigEndian.Uint32(packet)) != len(packet)-4 {
		t.Fatalf("%d bytes, %q", len(packet), packet)
	}
	padding := int(packet[4])
	payload := packet[5 : len(packet)-padding]
	text := payload[9 : 9+binary.BigEndian.Uint32(payload[5:])]
	if padding < 4 || payload[0] != 1 || !strings.HasPrefix(string(text), "Blocked by egressd: evil.test:22 default-deny (") {
		t.Errorf("padding %d, message %d, %q", padding, payload[0], text)
	}
}

// TestADeniedNameHasAPageInsideTLS asks with a client that trusts the authority.
func TestADeniedNameHasAPageInsideTLS(t *testing.T) {
	w := newInspectWorld(t, inspectPolicy, nil)
	c := w.captured(t, w.named(t, "evil.test", "443"))
	inner := tls.Client(c.Conn, &tls.Config{ServerName: "evil.test", RootCAs: w.pool})
	page := &testClient{inner, bufio.NewReader(inner), t}
	resp, body := page.send("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n").response("GET")
	if resp.StatusCode != 403 || !strings.Contains(body, `"class":"default-deny"`) {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
}

// TestAnAddressThatARuleNamesMayBeSpokenToFirst has the server of an address speak
// before the client.
func TestAnAddressThatARuleNamesMayBeSpokenToFirst(t *testing.T) {
	up := newOrigin(t, func(c net.Conn) { io.WriteString(c, "hello\n"); io.Copy(io.Discard, c) })
	w := newWorld(t, "version: 1\nallow: [\"192.0.2.1:"+up.port+"\"]\n", nil)
	to := netip.MustParseAddrPort("192.0.2.1:" + up.port)
	if !w.Gate.Outlook.Allows(t.Context(), sandbox.Peer{}, policy.Request{Via: policy.ViaTransparent, Destination: literal(to)}) {
		t.Error("the address is not foreseen")
	}
	for _, port := range []uint16{1, 443} {
		other := policy.Request{Via: policy.ViaTransparent, Destination: literal(netip.AddrPortFrom(to.Addr(), port))}
		if w.Gate.Outlook.Allows(t.Context(), sandbox.Peer{}, other) {
			t.Errorf("port %d is foreseen", port)
		}
	}
}

func TestAConnectionToTheListenerItselfIsRefused(t *testing.T) {
	w := newWorld(t, `version: 1
default: allow
unsafe_allow: ["127.0.0.1:*"]
`, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go w.ServeTransparent(l, "captured", OriginalLocal)
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil { // the reset may be faster
		defer c.Close()
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("read %q", got)
		}
	}
	w.recorded(t, func(r record.Record) bool {
		return r.Decision != nil && r.Decision.Class == string(policy.AddressDenied) && r.Dst.Host == "127.0.0.1"
	})
}

// TestAnAddressThatStandsForNothingMeansItself has the policy decide about an address of the range that no name has.
func TestAnAddressThatStandsForNothingMeansItself(t *testing.T) {
	w := newWorld(t, "version: 1\nallow: [allowed.test]\n", nil)
	for _, to := range []string{"28.255.9.9:80", "[2d00:6567:7265:7373::999]:80"} {
		at := netip.MustParseAddrPort(to)
		got := w.captured(t, at).send("GET / HTTP/1.1\r\nHost: " + to + "\r\n\r\n").rest()
		if !strings.HasPrefix(got, "HTTP/1.1 40") {
			t.Errorf("%s: read %q", to, got)
		}
		if r := w.opened(t, at.Addr().String()); r.Decision.Action != "deny" || r.Decision.Class == string(policy.AddressDenied) {
			t.Errorf("%s: recorded %+v", to, r.Decision)
		}
	}
}

// TestTheKernelTellsWhereAConnectionWasGoing reads what it does, byte by byte.
func TestTheKernelTellsWhereAConnectionWasGoing(t *testing.T) {
	four := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, 2), 443)
	four = append(four, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0)
	six := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, 10), 80)
	six = append(six, 0, 0, 0, 0)
	addr := netip.MustParseAddr("2001:db8::1").As16()
	six = append(append(six, addr[:]...), 0, 0, 0, 0)
	for _, row := range []struct {
		raw  []byte
		want string
	}{{four, "192.0.2.1:443"}, {six, "[2001:db8::1]:80"}, {four[:8], ""}, {six[:20], ""}, {nil, ""}, {make([]byte, 16), ""}} {
		got, err := originalFrom(row.raw)
		if row.want == "" && err == nil || row.want != "" && got.String() != row.want {
			t.Errorf("%x: %v %v, want %q", row.raw, got, err, row.want)
		}
	}
}
