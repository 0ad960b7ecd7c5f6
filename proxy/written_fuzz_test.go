package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// A judgedWorld is a server whose judge is asked about every request, and an origin that records them. The log keeps the
// newest records alone.
type judgedWorld struct {
	*Server
	judge  *judge
	origin *recorder
	tunnel *egress.Flow // to allowed.test
}

// newJudgedWorld returns a world for a way in that hands clients over by itself. says is the judge's verdict; in returns
// the policy around the judge.
func newJudgedWorld(t testing.TB, serve func(*recorder, net.Conn), says policy.Verdict, in func(*judge) *policy.Policy) *judgedWorld {
	log, err := audit.Create(filepath.Join(t.TempDir(), "audit"), audit.Options{
		Durability: audit.Process, SegmentBytes: 8 << 20, Retain: audit.Retain{Segments: 2}, Ephemeral: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	everybody, err := sandbox.NewDirectory(nil)
	if err != nil {
		t.Fatal(err)
	}
	o := newRecorder(t, serve)
	w := &judgedWorld{origin: o, judge: &judge{port: o.port(), says: says, asked: map[*policy.HTTPRequest]policy.Request{}}}
	w.Server = &Server{Gate: egress.New(egress.Config{Log: log, Sandboxes: everybody, Resolver: zone{}}), Sandboxes: everybody}
	if err := w.Gate.SetPolicy(context.Background(), in(w.judge), "fuzz"); err != nil {
		t.Fatal(err)
	}
	return w
}

// newJudgedH1World returns a world in which [judgedWorld.send] sends requests.
func newJudgedH1World(t testing.TB) *judgedWorld {
	w := newJudgedWorld(t, (*recorder).serveH1, policy.Allow, func(j *judge) *policy.Policy { return policy.New(j) })
	w.forwarder.Prepare(w.Gate, w.Sandboxes, Limits{Idle: 10 * time.Second})
	to := policy.Destination{Host: "allowed.test", Port: w.origin.port()}
	flow, err := w.Gate.Open(context.Background(), someone, policy.Request{Via: policy.ViaConnect, Destination: to})
	if err != nil {
		t.Fatal(err)
	}
	w.tunnel = flow
	t.Cleanup(func() { flow.Close(egress.End{Outcome: "closed"}) })
	return w
}

var someone = sandbox.Peer{Addr: netip.MustParseAddrPort("127.0.0.1:40000")}

// The ways by which requests of HTTP/1 come. The origin speaks no TLS in any of them.
const (
	toProxy = iota
	inTunnel
	captured
	inspected
	waysOfH1
)

// send has one client send text, and returns what was decided and what arrived. The default port is that which no Host names.
func (w *judgedWorld) send(way int, text string) (decided []policy.Request, arrived []arrival, defaultPort uint16) {
	tell := &teller{said: []byte(text)}
	h := &exchange.Client{
		Forwarder: &w.forwarder, Raw: tell, Conn: tell, Peer: someone, Via: policy.ViaHTTP,
		Assign: func(string, string) *egress.Refusal { return nil },
	}
	defaultPort = 80
	to := w.tunnel.Destination()
	switch way {
	case inTunnel:
		h.TunnelTo, h.Via = &to, policy.ViaConnect
	case captured:
		there := literal(netip.AddrPortFrom(loopback, to.Port))
		h.CapturedTo, h.Via = &there, policy.ViaTransparent
	case inspected:
		h.TunnelTo, h.Via = &to, policy.ViaConnect
		h.ServeInside(openTunnel{w.tunnel}, nil, false)
		defaultPort = 443
	}
	if way != inspected {
		h.ServeH1()
	}
	decided = w.judge.allowed()
	return decided, w.origin.take(len(decided)), defaultPort
}

// An openTunnel is an inspected tunnel without TLS.
type openTunnel struct{ flow *egress.Flow }

func (openTunnel) Broken() *egress.Refusal                        { return nil }
func (o openTunnel) Destination() policy.Destination              { return o.flow.Destination() }
func (openTunnel) WhyBroken() string                              { return "" }
func (openTunnel) Outcome(byItself record.Outcome) record.Outcome { return byItself }
func (openTunnel) Cut()                                           {}

func (o openTunnel) Request(ctx context.Context, r *policy.HTTPRequest, read egress.RequestReader) (*egress.Flow, error) {
	return o.flow.Request(ctx, r, read)
}

func (o openTunnel) Redial(ctx context.Context, _ *egress.Flow) (net.Conn, error) {
	return o.flow.Dial(ctx)
}

func (o openTunnel) DialBeside(ctx context.Context, request *egress.Flow) (net.Conn, error) {
	return o.Redial(ctx, request)
}

// Pieces that hostile requests are made of. PORT stands for the origin's.
var (
	methods = []string{"GET", "GET", "POST", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "get", "TRACE", "PATCH", "CONNECT", "X-Y", "PRI", "G(T", "GET\t", ""}
	paths   = []string{
		"/", "/x?a=b", "/x?", "/?", "?a=b", "", "*", "/%41%2f%2F", "/%2e%2e/a", "/../a", "/a//b/./c", "//evil.test/a", "/\\evil.test", "/a;b=c", "/%zz", "/%", "/%00", "/a?%zz&%0d%0aX:y",
		"/日本", "/\xff", "/a#b", "/a b", "/a\tb", "/a:b@c", "/|\"<>^`{}", "/a?b?c#d", "/http://evil.test/", "/denied/x", "/early/x", "/%c0%ae%c0%ae/", "/a\x00b", "/a\rb", "/" + strings.Repeat("a", 3000),
	}
	hosts = []string{
		"allowed.test:PORT", "allowed.test:PORT", "allowed.test:PORT", "allowed.test", "ALLOWED.test.:PORT", "allowed.test:0PORT", "evil.test:PORT", "evil.test", "127.0.0.1:PORT", "[::1]:PORT", "", "u:p@allowed.test:PORT",
		"allowed.test:PORT, evil.test", "allowed.test:PORT/x", "allowed.test:PORT#@evil.test", "allowed.test\x00.evil.test", "xn--e1a.test:PORT", "allowed.test:", "0x7f.1:PORT", "allowed_x.test:PORT",
	}
	fieldLines = []string{
		"Content-Length: 3", "Content-Length: 3", "Content-Length: 0", "Content-Length: 03", "Content-Length: +3", "Content-Length: 3, 3", "Content-Length: 3\r\nContent-Length: 3", "Content-Length : 3", "Content_Length: 3", "CONTENT-LENGTH: 40",
		"Transfer-Encoding: chunked", "Transfer-Encoding: chunked", "Transfer-Encoding: Chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding:\x0bchunked", "Transfer_Encoding: chunked", "TE: trailers", "TE: trailers, deflate",
		"Connection: close", "Connection: keep-alive, X-A", "Connection: X-A", "Connection: Host", "Connection: Content-Length", "Connection: Cookie, Authorization", "Connection: Upgrade", "Proxy-Connection: X-A", "Keep-Alive: timeout=5",
		"Upgrade: websocket", "Upgrade: h2c", "Upgrade: a, b", "HTTP2-Settings: AAMAAABkAAQ", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13", "Expect: 100-continue", "Expect: 200-ok", "Expect:",
		"X-A: 1", "x-a: 2", "X-A:", "X-High: \xff\x80", "X-Tab: a\tb", "X-Nul: \x00", "X-Cr: a\rb", "X-Long: " + strings.Repeat("y", 9000), " folded", "X : y", "X-Colon: : x:y", "!#$%&'*+-.^_`|~: t", "Cookie: a=b", "Cookie: c=d;;e=f; ", "Cookie: a=b;c=d", "Cookie: ;", "Cookie:", "User-Agent: a", "User-Agent: b", "User-Agent:",
		"Authorization: Basic eDp5", "Proxy-Authorization: Basic eDp5", "X-Forwarded-For: 1.2.3.4", "X_Forwarded_Host: evil.test", "X-HTTP-Method-Override: DELETE", "X-Original-URL: /denied/x", "Forwarded: for=x", "Trailer: X-Last", "Max-Forwards: 0", "Range: bytes=0-1", "Content-Encoding: gzip", "Host: evil.test", "Host:evil.test:PORT",
	}
	payloads = []string{
		"abc", "", "3\r\nabc\r\n0\r\n\r\n", "3;x=\"y\"\r\nabc\r\n00\r\nX-T: 1\r\nHost: z\r\n\r\n", "3\nabc\n0\n\n", "0\r\n\r\nGET /denied/x HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\n", "abcGET /denied/x HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\n",
		"ffffffffffffffff\r\nabc", "-3\r\nabc\r\n", "3 \r\nabc\r\n0\r\n\r\n", "3\r\nabcX\r\n0\r\n\r\n", strings.Repeat("z", 40), "\r\n",
	}
)

// oddsFrom returns against how many harmless pieces there is one that is hostile: the fewer requests are refused, the more
// are compared.
func oddsFrom(r *rand.Rand) int { return 4 << r.IntN(5) }

// hostile returns some requests of HTTP/1 for one connection, the same for the same seed. Most have one or two things that
// are hostile: of more, only the first would be seen. whole: most targets are URLs.
func hostile(seed uint64, whole bool) string {
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	odds := oddsFrom(r)
	rarely := func(likely string, from []string) string {
		if r.IntN(odds) > 0 {
			return likely
		}
		return pick(from)
	}
	end := func() string {
		if r.IntN(8*odds) > 0 {
			return "\r\n"
		}
		return pick([]string{"\n", "\r", "\r\r\n", "\x00\r\n"})
	}
	var s strings.Builder
	for range 1 + r.IntN(2*odds) {
		s.WriteString(rarely(pick(methods[:8]), methods) + " ")
		if whole != (r.IntN(odds) == 0) {
			s.WriteString(rarely("http://", []string{"HTTP://", "https://", "http:/", "ftp://"}) + rarely("allowed.test:PORT", hosts))
		}
		s.WriteString(rarely("/x?y", paths) + " " + rarely("HTTP/1.1", []string{"HTTP/1.0", "HTTP/2.0", "http/1.1", "HTTP/1.1 "}) + end())
		if r.IntN(2*odds) > 0 {
			s.WriteString("Host: " + rarely("allowed.test:PORT", hosts) + end())
		}
		for range r.IntN(3) {
			line := rarely("X-A: 1", fieldLines)
			for range 1 + r.IntN(4)/3 { // some twice
				s.WriteString(line + end())
			}
		}
		switch r.IntN(4) {
		case 0:
			s.WriteString("Content-Length: 3" + end() + end() + rarely("abc", payloads))
		case 1:
			s.WriteString("Transfer-Encoding: chunked" + end() + end() + rarely("3\r\nabc\r\n0\r\n\r\n", payloads))
		default:
			s.WriteString(end() + rarely("", payloads))
		}
	}
	text := []byte(s.String())
	if r.IntN(odds) == 0 {
		text[r.IntN(len(text))] = byte(r.IntN(256))
	}
	return string(text)
}

// FuzzWrittenIsJudged: whatever a client of HTTP/1 sends, a request that reaches an origin is one that was allowed, with the
// method, host, path, query, fields and length that the policy was asked about, in a form that has one reading. Without a
// text of its own, the client sends requests that are made of hostile pieces.
func FuzzWrittenIsJudged(f *testing.F) {
	w := newJudgedH1World(f)
	for way := range uint8(waysOfH1) {
		for _, text := range []string{
			"GET http://allowed.test:PORT/x?y HTTP/1.1\r\nHost: other.test\r\nX-A: 1\r\nx-a: 2\r\n\r\n",
			"POST /x HTTP/1.1\r\nHost: allowed.test:PORT\r\nContent-Length: 3\r\n\r\nabcGET /x? HTTP/1.1\r\nHost: allowed.test:PORT\r\n\r\n",
			"POST /x HTTP/1.1\r\nHost: allowed.test:PORT\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n3\r\nabc\r\n0\r\nX-A: 1\r\n\r\n",
			"OPTIONS * HTTP/1.1\r\nHost: allowed.test:PORT\r\nConnection: Upgrade, X-A\r\nUpgrade: a\r\nX-A: 1\r\n\r\n",
			"PUT /x HTTP/1.1\r\nHost: allowed.test:PORT\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
		} {
			f.Add(way, uint64(0), text)
		}
		for seed := range uint64(60) {
			f.Add(way, seed, "")
		}
	}
	port := strconv.Itoa(int(w.origin.port()))
	f.Fuzz(func(t *testing.T, way uint8, seed uint64, text string) {
		if text == "" {
			text = hostile(seed, int(way)%waysOfH1 == toProxy)
		}
		text = strings.ReplaceAll(text, "PORT", port)
		if wrong, _ := compare(w.send(int(way)%waysOfH1, text)); wrong != nil {
			t.Errorf("%q\nway %d, of %q", wrong, way%waysOfH1, text)
		}
	})
}

// TestHostileRequestsAreJudged is FuzzWrittenIsJudged in bulk. EGRESSD_REQUESTS=10000000 compares that many requests.
func TestHostileRequestsAreJudged(t *testing.T) {
	var arrived [waysOfH1]atomic.Int64
	seeds := inBulk(t, 2000, func() func(uint64) (int, string) {
		w := newJudgedH1World(t)
		port := strconv.Itoa(int(w.origin.port()))
		return func(seed uint64) (came int, of string) {
			for way := range arrived {
				text := strings.ReplaceAll(hostile(seed, way == toProxy), "PORT", port)
				decided, all, defaultPort := w.send(way, text)
				if wrong, _ := compare(decided, all, defaultPort); wrong != nil {
					return came, fmt.Sprintf("%q\nway %d, of %q", wrong, way, text)
				}
				came += len(all)
				arrived[way].Add(int64(len(all)))
			}
			return came, ""
		}
	})
	for way := range arrived {
		if n := arrived[way].Load(); n < seeds/2 {
			t.Errorf("by way %d, %d requests of %d connections arrive", way, n, seeds)
		}
	}
}

// inBulk has worlds judge what is made of one seed after the other, until least requests have arrived, and returns the
// number of seeds. A world says how many requests of a seed have arrived, and what is wrong with one. The seeds begin
// with EGRESSD_SEED.
func inBulk(t *testing.T, least int64, world func() func(seed uint64) (arrived int, wrong string)) int64 {
	var first uint64
	if more, err := strconv.ParseInt(os.Getenv("EGRESSD_REQUESTS"), 10, 64); err == nil {
		least, first = more, uint64(time.Now().UnixNano())
		if same, err := strconv.ParseUint(os.Getenv("EGRESSD_SEED"), 10, 64); err == nil {
			first = same
		}
		t.Logf("from EGRESSD_SEED=%d", first)
		defer debug.SetGCPercent(debug.SetGCPercent(800)) // the heap is small, and the garbage much
	}
	var arrived, seeds atomic.Int64
	var working sync.WaitGroup
	began := time.Now()
	for range 2 * runtime.GOMAXPROCS(0) { // half of the time, a world waits for its origin
		judge := world()
		working.Go(func() {
			for arrived.Load() < least && !t.Failed() {
				seed := first + uint64(seeds.Add(1)) - 1
				n, wrong := judge(seed)
				arrived.Add(int64(n))
				if wrong != "" {
					t.Errorf("EGRESSD_SEED=%d: %s", seed, wrong)
				}
			}
		})
	}
	working.Wait()
	t.Logf("%d requests of %d seeds compared, %.0f a second", arrived.Load(), seeds.Load(), float64(arrived.Load())/time.Since(began).Seconds())
	return seeds.Load()
}
