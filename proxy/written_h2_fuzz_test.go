package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/proxy/inspect"
)

const judgedPolicy = `version: 1
allow: [{host: "allowed.test:*", methods: [GET, POST, PUT, HEAD, OPTIONS, DELETE, PATCH, TRACE]}]
unsafe_allow: ["127.0.0.1:*"]
`

// A judgedTunnel has one client that speaks HTTP/2 in an inspected tunnel, and says what nobody should.
type judgedTunnel struct {
	*judgedWorld
	trust  *x509.CertPool
	at     string           // of the server
	client net.Conn         // nil: the next request needs a connection
	speak  *http2.Framer    // of client
	last   uint32           // stream
	late   []policy.Request // that were decided, and have not arrived: the client broke them off
}

func newJudgedTunnel(t testing.TB) *judgedTunnel {
	authority, err := certs.Create(t.TempDir() + "/ca")
	if err != nil {
		t.Fatal(err)
	}
	keys := newPKI(t)
	config := &tls.Config{Certificates: []tls.Certificate{keys.Server(t, nil, testNames...)}, NextProtos: []string{"h2"}, CurvePreferences: []tls.CurveID{tls.X25519}}
	w := &judgedTunnel{trust: x509.NewCertPool()}
	w.trust.AddCert(authority.Certificate())
	w.judgedWorld = newJudgedWorld(t, func(o *recorder, c net.Conn) {
		if secure := tls.Server(c, config); secure.Handshake() == nil {
			o.serveH2(secure)
		}
	}, policy.Abstain, func(j *judge) *policy.Policy {
		parsed, err := file.Parse("test.yaml", []byte(judgedPolicy))
		if err != nil {
			t.Fatal(err)
		}
		p, err := parsed.Compile(file.Environment{Inspection: true, Evaluators: []policy.Evaluator{j}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
	w.Inspect(&inspect.Inspection{Authority: authority, Roots: keys.Pool})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.at = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { w.Serve(l, "tcp") })
	t.Cleanup(func() {
		w.leave()
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		w.Shutdown(ctx)
		serving.Wait()
	})
	return w
}

func (w *judgedTunnel) leave() {
	if w.client != nil {
		w.client.Close()
	}
	w.client = nil
}

// connect opens the tunnel, unless it is open.
func (w *judgedTunnel) connect() error {
	if w.client != nil {
		return nil
	}
	c, err := net.Dial("tcp", w.at)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	port := strconv.Itoa(int(w.origin.port()))
	io.WriteString(c, connectTo("allowed.test", port))
	if _, err := io.ReadFull(c, make([]byte, len(established))); err != nil {
		return err
	}
	secure := tls.Client(c, &tls.Config{ServerName: "allowed.test", RootCAs: w.trust, NextProtos: []string{"h2"}, CurvePreferences: []tls.CurveID{tls.X25519}})
	if err := secure.Handshake(); err != nil {
		return err
	}
	w.client, w.last, w.speak = secure, 0, http2.NewFramer(secure, secure)
	w.speak.AllowIllegalWrites = true
	io.WriteString(secure, http2.ClientPreface)
	return w.speak.WriteSettings()
}

// A said is what a client says on one stream: a head, a body and trailers, each of which may be empty.
type said struct {
	head, trailers [][2]string
	body           string
}

// readSaid reads a text: lines of "name: value", an empty line, the body, an empty line, more lines.
func readSaid(text string) (s said) {
	parts := append(strings.SplitN(text, "\n\n", 3), "", "")
	lines := func(text string) (all [][2]string) {
		for line := range strings.SplitSeq(text, "\n") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				all = append(all, [2]string{name, value})
			}
		}
		return all
	}
	return said{lines(parts[0]), lines(parts[2]), parts[1]}
}

func packed(fields [][2]string) []byte {
	var block bytes.Buffer
	pack := hpack.NewEncoder(&block)
	pack.SetMaxDynamicTableSize(0)
	for _, f := range fields {
		pack.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return block.Bytes()
}

// send has the client send a request, waits until its stream has ended, or the connection, and returns what has arrived.
func (w *judgedTunnel) send(t testing.TB, s said) []arrival {
	if err := w.connect(); err != nil {
		t.Fatal(err)
	}
	w.client.SetDeadline(time.Now().Add(3 * time.Second))
	stream := w.last + 1
	w.last += 2
	w.head(stream, packed(s.head), s.body == "" && s.trailers == nil)
	if s.body != "" {
		w.speak.WriteData(stream, s.trailers == nil, []byte(s.body))
	}
	if s.trailers != nil {
		w.head(stream, packed(s.trailers), true)
	}
	if !w.ends(stream) {
		w.leave()
	}
	return w.origin.take(0)
}

func (w *judgedTunnel) head(stream uint32, block []byte, ends bool) {
	const most = 16 << 10
	first := min(len(block), most)
	w.speak.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:first], EndStream: ends, EndHeaders: len(block) <= most})
	for block = block[first:]; len(block) > 0; block = block[first:] {
		first = min(len(block), most)
		w.speak.WriteContinuation(stream, len(block) <= most, block[:first])
	}
}

// ends reads to the end of a stream, and reports whether the connection takes another.
func (w *judgedTunnel) ends(stream uint32) bool {
	for {
		frame, err := w.speak.ReadFrame()
		if err != nil {
			return false
		}
		ended := false
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				w.speak.WriteSettingsAck()
			}
		case *http2.GoAwayFrame:
			return false
		case *http2.DataFrame:
			if f.Length > 0 {
				w.speak.WriteWindowUpdate(0, f.Length)
			}
			ended = f.StreamEnded()
		case *http2.HeadersFrame:
			ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			ended = true
		}
		if ended && frame.Header().StreamID == stream { // one that was refused may be reset again, later
			return true
		}
	}
}

// serveH2 answers requests of HTTP/2 as [recorder.serveH1] does.
func (o *recorder) serveH2(c net.Conn) {
	f := serveFrames(c)
	var a arrival
	var block []byte
	var ended bool
	began := map[uint32]bool{}
	unpack := hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				f.WriteSettingsAck()
			}
			continue
		case *http2.PingFrame:
			f.WritePing(true, frame.Data)
			continue
		case *http2.DataFrame:
			f.WriteWindowUpdate(0, max(frame.Length, 1))
			if frame.StreamEnded() {
				answerAlone(f, frame.StreamID)
			}
			continue
		case *http2.HeadersFrame:
			block, ended = slices.Clone(frame.HeaderBlockFragment()), frame.StreamEnded()
			if !frame.HeadersEnded() {
				continue
			}
		case *http2.ContinuationFrame:
			block = append(block, frame.HeaderBlockFragment()...)
			if !frame.HeadersEnded() {
				continue
			}
		default:
			continue
		}
		stream := frame.Header().StreamID
		fields, err := unpack.DecodeFull(block)
		a = readFields(fields, ended)
		switch {
		case err != nil:
			a.problem = err.Error()
		case began[stream]:
			a.problem = fmt.Sprintf("trailers %q", fields)
		}
		began[stream] = true
		o.note(a)
		if ended {
			answerAlone(f, stream)
		}
	}
}

// answerAlone ends a stream with a head alone, which fits each method.
func answerAlone(f *frames, stream uint32) {
	var block strings.Builder
	hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte(block.String()), EndHeaders: true, EndStream: true})
}

// readFields reads a head as [readHead] does.
func readFields(fields []hpack.HeaderField, ended bool) (a arrival) {
	a.header = map[string][]string{}
	pseudo := map[string]*string{":method": &a.method, ":path": &a.target, ":authority": &a.host, ":scheme": new(string)}
	regular := false
	for _, f := range fields {
		at := pseudo[f.Name]
		switch {
		case at != nil && (*at != "" || f.Value == "" || regular), at == nil && strings.HasPrefix(f.Name, ":"),
			f.Name != strings.ToLower(f.Name), strings.Trim(f.Value, " \t") != f.Value,
			strings.ContainsFunc(f.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			a.problem = fmt.Sprintf("the field %q", f)
			return a
		case at != nil:
			*at = f.Value
		default:
			regular = true
			a.header[f.Name] = append(a.header[f.Name], f.Value)
		}
	}
	if crumbs := a.header["cookie"]; len(crumbs) > 1 {
		a.header["cookie"] = []string{strings.Join(crumbs, "; ")} // RFC 9113 section 8.2.3
	}
	if scheme := *pseudo[":scheme"]; scheme != "https" {
		a.problem = fmt.Sprintf("the scheme %q", scheme)
	}
	lengths := a.header["content-length"]
	switch n, err := strconv.ParseUint(strings.Join(lengths, ","), 10, 63); {
	case len(lengths) > 0 && (err != nil || strconv.FormatUint(n, 10) != lengths[0] || ended && n > 0):
		a.problem = fmt.Sprintf("the lengths %q", lengths)
	case len(lengths) > 0:
		a.length = int64(n)
	case !ended:
		a.length = -1
	}
	return a
}

// hostileH2 returns a request of HTTP/2, the same for the same seed.
func hostileH2(seed uint64) (s said) {
	r := rand.New(rand.NewPCG(seed, 2))
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	odds := oddsFrom(r)
	rarely := func(likely string, from []string) string {
		if r.IntN(odds) > 0 {
			return likely
		}
		return pick(from)
	}
	s.head = [][2]string{
		{":method", rarely(pick(methods[:8]), methods)}, {":scheme", rarely("https", []string{"http", "HTTPS", "ftp", ""})},
		{":authority", rarely("allowed.test:PORT", hosts)}, {":path", rarely("/x?y", paths)},
	}
	for range r.IntN(4) {
		name, value, _ := strings.Cut(rarely("x-a: 1", fieldLines), ":")
		value, _, _ = strings.Cut(value, "\r\n")
		field := [2]string{rarely(strings.ToLower(name), []string{name}), rarely(strings.TrimLeft(value, " "), []string{value, value + " "})}
		for range 1 + r.IntN(4)/3 { // some twice
			s.head = append(s.head, field)
		}
	}
	if r.IntN(odds) == 0 {
		s.head = append(s.head, [2]string{pick([]string{":protocol", ":status", ":path", ":authority", ":Method", ":", "host"}), pick(append(hosts, "websocket", "200", "/denied/x"))})
	}
	if r.IntN(odds) == 0 {
		r.Shuffle(len(s.head), func(i, j int) { s.head[i], s.head[j] = s.head[j], s.head[i] })
	}
	if r.IntN(odds) == 0 {
		s.head = slices.Delete(s.head, 0, 1+r.IntN(2))
	}
	if r.IntN(3) == 0 {
		s.body = rarely("abc", payloads)
	}
	if r.IntN(odds) == 0 {
		s.trailers = [][2]string{{pick([]string{"x-last", "content-length", "host", ":path", "authorization", "X-Up"}), "3"}}
	}
	return s
}

func (s said) withPort(port string) said {
	for _, fields := range [][][2]string{s.head, s.trailers} {
		for i := range fields {
			fields[i][1] = strings.ReplaceAll(fields[i][1], "PORT", port)
		}
	}
	return s
}

// FuzzWrittenIsJudgedH2 is [FuzzWrittenIsJudged] for clients of HTTP/2.
func FuzzWrittenIsJudgedH2(f *testing.F) {
	w := newJudgedTunnel(f)
	const head = ":method: POST\n:scheme: https\n:authority: allowed.test:PORT\n:path: /x?y\n"
	for _, text := range []string{
		head, head + "content-length: 3\n\nabc", head + "content-length: 03\ncontent-length: 03\n\nabc", head + "x-a: 1\nx-a: 2\n\nabc\n\nx-a: 3",
		head + "te: trailers\nuser-agent: a\nuser-agent: b", head + "cookie: a=b;c=d\ncookie: e=f; ;", head + "cookie: ", head + "user-agent: ", head + "content-length: 0", head + "host: allowed.test:PORT",
		head + "expect: 100-continue\n\nabc", head + "expect: x\n\nabc", head + "trailer: x-last\n\nabc\n\nx-last: 1", head + "connection: x-a", head + "priority: u=1, i",
	} {
		f.Add(uint64(0), text)
	}
	for seed := range uint64(200) {
		f.Add(seed, "")
	}
	port := strconv.Itoa(int(w.origin.port()))
	f.Fuzz(func(t *testing.T, seed uint64, text string) {
		s := hostileH2(seed)
		if text != "" {
			s = readSaid(text)
		}
		s = s.withPort(port)
		if wrong := w.compare(w.send(t, s)); wrong != nil {
			t.Errorf("%q\nof %q", wrong, s)
		}
	})
}

// compare returns what is wrong with what has arrived. A request that was broken off may arrive while a later one is
// compared.
func (w *judgedTunnel) compare(arrived []arrival) (wrong []string) {
	wrong, w.late = compare(append(w.late, w.judge.allowed()...), arrived, 443)
	w.late = slices.Clone(w.late[max(0, len(w.late)-64):])
	return wrong
}

// TestHostileRequestsAreJudgedOverH2 is FuzzWrittenIsJudgedH2 in bulk, see [TestHostileRequestsAreJudged].
func TestHostileRequestsAreJudgedOverH2(t *testing.T) {
	var arrived atomic.Int64
	seeds := inBulk(t, 400, func() func(uint64) (int, string) {
		w := newJudgedTunnel(t)
		port := strconv.Itoa(int(w.origin.port()))
		return func(seed uint64) (int, string) {
			s := hostileH2(seed).withPort(port)
			all := w.send(t, s)
			arrived.Add(int64(len(all)))
			if wrong := w.compare(all); wrong != nil {
				return len(all), fmt.Sprintf("%q\nof %q", wrong, s)
			}
			return len(all), ""
		}
	})
	if n := arrived.Load(); n < seeds/4 {
		t.Errorf("%d of %d arrive", n, seeds)
	}
}
