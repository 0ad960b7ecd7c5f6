package egress

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/egress/upstream"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestWhatAnUpstreamProxyDoesWrong: its refusal has a class and a note of its own, nothing waits longer than a dial
// may take, and nothing is reached directly.
func TestWhatAnUpstreamProxyDoesWrong(t *testing.T) {
	answers := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, text)
			io.Copy(io.Discard, c)
		}
	}
	socks := func(replies ...string) func(net.Conn) {
		return func(c net.Conn) {
			for _, r := range replies {
				c.Read(make([]byte, 512))
				io.WriteString(c, r)
			}
			io.Copy(io.Discard, c)
		}
	}
	drips := func(c net.Conn) {
		for range 1000 {
			if _, err := io.WriteString(c, "H"); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	for says, row := range map[string]struct {
		handle func(net.Conn)
		socks  bool
		class  policy.Class
		note   string
	}{
		"it refuses":               {answers("HTTP/1.1 403 Not for you\r\nContent-Length: 0\r\n\r\n"), false, policy.UpstreamRefused, "403 Not for you"},
		"it wants a password":      {answers("HTTP/1.1 407 Who are you\r\n\r\n"), false, policy.UpstreamRefused, "407 Who are you"},
		"it cannot reach it":       {answers("HTTP/1.1 503 Service Unavailable\r\n\r\n"), false, policy.UpstreamRefused, "503 Service Unavailable"},
		"it redirects":             {answers("HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\n\r\n"), false, policy.UpstreamRefused, "302 Found"},
		"it is not English":        {answers("HTTP/1.1 403 Acc\xe8s interdit\r\n\r\n"), false, policy.UpstreamRefused, "403 Acc?s interdit"},
		"it speaks as egressd":     {answers("HTTP/1.1 403 Blocked by egressd: <b>\"x\"</b>\r\nX-Egressd-Id: 01KB6ZQ4SZ\r\n\r\n"), false, policy.UpstreamRefused, "403 Blocked by egressd: ?b??x??/b?"},
		"interim without an end":   {answers(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 2000)), false, policy.NetworkTLS, "not its protocol"},
		"a head without an end":    {answers("HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 9000)), false, policy.NetworkTLS, "not its protocol"},
		"a line without an end":    {answers("HTTP/1.1 200 " + strings.Repeat("a", 1<<20)), false, policy.NetworkTLS, "not its protocol"},
		"it switches protocols":    {answers("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), false, policy.NetworkTLS, "not its protocol"},
		"it is no HTTP":            {answers("SSH-2.0-OpenSSH\r\n\r\n"), false, policy.NetworkTLS, "not its protocol"},
		"it closes":                {func(c net.Conn) { http.ReadRequest(bufio.NewReader(c)) }, false, policy.NetworkReset, "closed the connection"},
		"it is silent":             {func(c net.Conn) { io.Copy(io.Discard, c) }, false, policy.NetworkTimeout, "in time"},
		"it drips":                 {drips, false, policy.NetworkTimeout, "in time"},
		"SOCKS refuses":            {socks("\x05\x00", "\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00"), true, policy.UpstreamRefused, "SOCKS reply 2 not allowed by its rules"},
		"SOCKS knows other errors": {socks("\x05\x00", "\x05\x63\x00\x01"), true, policy.UpstreamRefused, "SOCKS reply 99"},
		"SOCKS wants a password":   {socks("\x05\xff"), true, policy.UpstreamRefused, "ways to sign in"},
		"SOCKS chooses another":    {socks("\x05\x01"), true, policy.NetworkTLS, "not its protocol"},
		"SOCKS of version 4":       {socks("\x00\x5a"), true, policy.NetworkTLS, "not its protocol"},
		"SOCKS with a strange end": {socks("\x05\x00", "\x05\x00\x00\x09"), true, policy.NetworkTLS, "not its protocol"},
		"SOCKS is silent":          {func(c net.Conn) { io.Copy(io.Discard, c) }, true, policy.NetworkTimeout, "in time"},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			p := serveUpstream(t, false, row.handle)
			p.SOCKS = row.socks
			w, f := throughUpstream(t, &p)
			w.config.DialTimeout = time.Minute
			if row.class == policy.NetworkTimeout {
				w.config.DialTimeout = 300 * time.Millisecond
			}
			began := time.Now()
			_, err := f.Dial(t.Context())
			r := refusalOf(t, err, row.class)
			if took := time.Since(began); took > 8*time.Second { // after ten, the proxy gives up
				t.Errorf("it took %v", took)
			}
			if !strings.Contains(r.Note, row.note) || r.Note != r.Decision.Reason {
				t.Errorf("the note is %q, the reason %q", r.Note, r.Decision.Reason)
			}
			f.Close(End{Outcome: record.Outcome(r.Decision.Class), Note: r.Note})
			closes := w.records(t, record.KindClose)
			if len(closes) != 1 || closes[0].Note != r.Note {
				t.Errorf("recorded %+v", closes)
			}
		})
	}
}

// TestAKilledUpstreamProxyIsNotGoneAround has nobody listen where the proxy was.
func TestAKilledUpstreamProxyIsNotGoneAround(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	_, port, _ := net.SplitHostPort(originSaying(t, "hello"))
	w := newWorld(t, policy.New(opinion(allow)))
	w.Route.Through(&upstream.Proxy{At: policy.Destination{Host: at.Addr().String(), Addr: at.Addr(), Port: at.Port()}})
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:"+port)) // something answers there
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	_, err = f.Dial(t.Context())
	if r := refusalOf(t, err, policy.NetworkRefused); !strings.Contains(r.Note, "upstream proxy") {
		t.Errorf("the note is %q", r.Note)
	}
}
