package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// secured opens a tunnel to allowed.test and makes TLS in it.
func (d *daemon) secured(t *testing.T, change func(*tls.Config)) *tls.Conn {
	t.Helper()
	c, status, err := d.open("allowed.test:443", "")
	if err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	t.Cleanup(func() { c.Close() })
	config := &tls.Config{ServerName: "allowed.test", RootCAs: d.trusts(t), NextProtos: []string{"h2"}}
	if change != nil {
		change(config)
	}
	inner := tls.Client(c, config)
	if err := inner.Handshake(); err != nil {
		t.Fatal(err)
	}
	inner.SetDeadline(time.Now().Add(floodPatience))
	return inner
}

const floodPatience = 20 * time.Second

// A framer is a client that sends whichever frames it likes.
type framer struct {
	*http2.Framer
	src    string // its address, as in records
	conn   *tls.Conn
	block  bytes.Buffer
	pack   *hpack.Encoder
	stream uint32 // the last one that was opened
	seen   seen
	over   chan struct{} // closed when nothing more comes

	answered chan struct{} // closed when the last PING was answered
}

// seen is what came back.
type seen struct {
	mu      sync.Mutex
	resets  map[uint32]http2.ErrCode
	answers map[uint32]string // statuses
	goaway  http2.ErrCode
	told    bool // by a GOAWAY
}

// frames opens a connection of HTTP/2 and reads all that comes back.
func (d *daemon) frames(t *testing.T) *framer {
	t.Helper()
	conn := d.secured(t, nil)
	f := &framer{conn: conn, src: conn.LocalAddr().String(), over: make(chan struct{}), answered: make(chan struct{})}
	f.Framer = http2.NewFramer(conn, conn)
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.pack = hpack.NewEncoder(&f.block)
	f.seen.resets, f.seen.answers = map[uint32]http2.ErrCode{}, map[uint32]string{}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	settled := make(chan struct{})
	go f.read(settled)
	<-settled
	t.Cleanup(func() {
		conn.Close()
		<-f.over
	})
	return f
}

// read notes what comes back until the connection ends. settled is closed
// when the first frame was there.
func (f *framer) read(settled chan struct{}) {
	defer close(f.over)
	for first := true; ; first = false {
		frame, err := f.ReadFrame()
		if first {
			close(settled)
		}
		var stream http2.StreamError
		if err != nil && !errors.As(err, &stream) {
			return
		}
		if p, ok := frame.(*http2.PingFrame); ok && p.Data == lastPing {
			close(f.answered)
		}
		f.seen.note(frame)
	}
}

func (s *seen) note(frame http2.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch frame := frame.(type) {
	case *http2.RSTStreamFrame:
		s.resets[frame.StreamID] = frame.ErrCode
	case *http2.MetaHeadersFrame:
		s.answers[frame.StreamID] = frame.PseudoValue("status")
	case *http2.GoAwayFrame:
		s.goaway, s.told = frame.ErrCode, true
	}
}

// fate says what became of a stream: its status, a reset, or that of the
// whole connection.
func (s *seen) fate(id uint32) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	code, reset := s.resets[id]
	switch {
	case s.answers[id] != "":
		return s.answers[id]
	case reset:
		return code.String()
	case s.told:
		return "GOAWAY " + s.goaway.String()
	}
	return ""
}

// encode makes a header block of pairs of names and values.
func (f *framer) encode(pairs ...string) []byte {
	f.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		f.pack.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return bytes.Clone(f.block.Bytes())
}

// request is the head of an ordinary request, and more.
func request(path string, more ...string) []string {
	return append([]string{":method", "GET", ":scheme", "https", ":authority", "allowed.test", ":path", path}, more...)
}

// open opens the next stream, which is complete where end is true.
func (f *framer) open(block []byte, end bool) error {
	f.next()
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: block, EndStream: end, EndHeaders: true})
}

// next counts the streams that are opened (RFC 9113 §5.1.1).
func (f *framer) next() {
	if f.stream == 0 {
		f.stream = 1
		return
	}
	f.stream += 2
}

// without returns the fields of a request less one.
func without(name string, pairs []string) (rest []string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] != name {
			rest = append(rest, pairs[i], pairs[i+1])
		}
	}
	return rest
}

// with returns the fields of a request with another value in one.
func with(name, value string, pairs []string) []string {
	pairs = slices.Clone(pairs)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == name {
			pairs[i+1] = value
		}
	}
	return pairs
}

const (
	protocolError = "PROTOCOL_ERROR"
	badRequest    = "400"
)

// malformedHeads are heads that no upstream may see. %s is a path that is
// known to the origin.
func malformedHeads(path string) []malformedHead {
	good := request(path)
	return []malformedHead{
		{"no :method", protocolError, without(":method", good)},
		{"no :scheme", protocolError, without(":scheme", good)},
		{"no :path", protocolError, without(":path", good)},
		{"two :method", protocolError, append([]string{":method", "GET"}, good...)},
		{"two :path", protocolError, append([]string{":path", "/other"}, good...)},
		{"two :authority", protocolError, append([]string{":authority", "evil.test"}, good...)},
		{":authority and another Host", protocolError, append(good, "host", "evil.test")},
		{"two Host fields", protocolError, append(without(":authority", good), "host", "allowed.test", "host", "evil.test")},
		{"userinfo in :authority", protocolError, with(":authority", "a@allowed.test", good)},
		{"an empty :path", protocolError, with(":path", "", good)},
		{":path without a slash", protocolError, with(":path", "x"+path, good)},
		{":path as a URL", protocolError, with(":path", "https://allowed.test"+path, good)},
		{":path of * in a GET", badRequest, with(":path", "*", good)},
		{":path with a fragment", badRequest, with(":path", path+"#f", good)},
		{":path with a space", badRequest, with(":path", path+" HTTP/1.1", good)},
		{":scheme ftp", protocolError, with(":scheme", "ftp", good)},
		{":scheme http", badRequest, with(":scheme", "http", good)},
		{":method with a space", badRequest, with(":method", "GET /", good)},
		{":status", protocolError, append(good, ":status", "200")},
		{":protocol", protocolError, append(good, ":protocol", "websocket")},
		{"an unknown pseudo-header field", protocolError, append(good, ":evil", "x")},
		{"a pseudo-header field after others", protocolError, append(append([]string{"accept", "*/*"}, good...), "x", "y")},
		{"CONNECT", badRequest, []string{":method", "CONNECT", ":authority", "evil.test:443"}},
		{"CONNECT with a path", protocolError, with(":method", "CONNECT", good)},
		{"a name in upper case", protocolError, append(good, "X-Upper", "v")},
		{"a name with a space", protocolError, append(good, "x y", "v")},
		{"no name", protocolError, append(good, "", "v")},
		{"a value with CR LF", protocolError, append(good, "x", "v\r\nHost: evil.test")},
		{"a value with NUL", protocolError, append(good, "x", "v\x00")},
		{"a value with a space in front", badRequest, append(good, "x", " v")},
		{"Connection", badRequest, append(good, "connection", "x-secret")},
		{"Keep-Alive", badRequest, append(good, "keep-alive", "timeout=5")},
		{"Proxy-Connection", badRequest, append(good, "proxy-connection", "close")},
		{"Transfer-Encoding", badRequest, append(good, "transfer-encoding", "chunked")},
		{"Upgrade", badRequest, append(good, "upgrade", "h2c")},
		{"TE of gzip", badRequest, append(good, "te", "gzip")},
		{"two TE fields", badRequest, append(good, "te", "trailers", "te", "trailers")},
		{"101 fields", badRequest, append(good, slices.Repeat([]string{"x", "v"}, 101)...)},
		{"a field as large as a header list", "GOAWAY COMPRESSION_ERROR", append(good, "x", strings.Repeat("v", 70<<10))},
		{"a header list that is too large", "431", append(good, slices.Repeat([]string{"x", strings.Repeat("v", 3000)}, 30)...)},
	}
}

type malformedHead struct {
	says, fate string
	fields     []string
}

// TestMalformedHTTP2 sends each malformed head in a connection of its own. It
// is answered as stated, the origin sees nothing, and one record says so.
func TestMalformedHTTP2(t *testing.T) {
	covers(t, "H2-05")
	d := startInside(t, "")
	path := fmt.Sprintf("/stray-%d", time.Now().UnixNano())
	d.world.origin.mux.HandleFunc(path, func(_ http.ResponseWriter, r *http.Request) {
		if r.UserAgent() != "good" {
			t.Errorf("the origin saw %s %s %v", r.Method, r.URL, r.Header)
		}
	})
	for _, row := range malformedHeads(path) {
		t.Run(row.says, func(t *testing.T) {
			mark, err := d.log.mark()
			if err != nil {
				t.Fatal(err)
			}
			f := d.frames(t)
			f.mustOpen(t, row.fields)
			if fate := f.fate(t); fate != row.fate {
				t.Errorf("answered by %s, want %s", fate, row.fate)
			}
			if !f.seen.ended() {
				f.mustOpen(t, request(path, "user-agent", "good"))
				if fate := f.fate(t); fate != "200" {
					t.Errorf("then an ordinary request is answered by %s", fate)
				}
			}
			f.conn.Close()
			d.expectRefused(t, f.src, mark, 1)
		})
	}
	d.settled(t)
}

// mustOpen opens a stream without a body, its head in as many frames as it
// takes.
func (f *framer) mustOpen(t *testing.T, fields []string) {
	t.Helper()
	const most = 16 << 10
	block := f.encode(fields...)
	first := block[:min(most, len(block))]
	rest := block[len(first):]
	f.next()
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: first, EndStream: true, EndHeaders: len(rest) == 0})
	for len(rest) > 0 && err == nil {
		part := rest[:min(most, len(rest))]
		rest = rest[len(part):]
		err = f.WriteContinuation(f.stream, len(rest) == 0, part)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fate waits for what becomes of the newest stream.
func (f *framer) fate(t *testing.T) (fate string) {
	t.Helper()
	if !eventually(patience, func() bool { fate = f.seen.fate(f.stream); return fate != "" }) {
		t.Error("nothing was answered")
	}
	return fate
}

// expectRefused expects n records of what was malformed in one connection.
func (d *daemon) expectRefused(t *testing.T, src string, mark, n int) {
	t.Helper()
	var refused []record.Record
	over := func() (ended bool) {
		records, _ := d.log.of(src, mark)
		refused = nil
		for _, r := range records {
			ended = ended || r.Kind == record.KindClose && r.HTTP == nil
			if r.Kind == record.KindRefused {
				refused = append(refused, r)
			}
		}
		return ended
	}
	if !eventually(settling, over) {
		t.Error("the end of the tunnel is not recorded")
	}
	for _, r := range refused {
		if r.Decision.Class != string(policy.MalformedRequest) || r.Decision.Reason == "" {
			t.Errorf("recorded %+v", r.Decision)
		}
	}
	if len(refused) != n {
		t.Errorf("%d records of what was malformed, want %d: %v", len(refused), n, reasons(refused))
	}
}

func reasons(records []record.Record) (all []string) {
	for _, r := range records {
		all = append(all, r.Decision.Reason)
	}
	return all
}

// TestBodyOfARefusedRequest has a client send on, as clients do that have not
// read the answer yet. That is nothing malformed, and the connection stays.
func TestBodyOfARefusedRequest(t *testing.T) {
	d := startInside(t, "")
	mark, err := d.log.mark()
	if err != nil {
		t.Fatal(err)
	}
	f := d.frames(t)
	if err := f.open(f.encode(with(":method", "PUT", request("/upload"))...), false); err != nil {
		t.Fatal(err)
	}
	if fate := f.fate(t); fate != "403" {
		t.Errorf("a denied upload is answered by %s", fate)
	}
	if !eventually(patience, func() bool { return f.seen.reset(f.stream) }) {
		t.Error("the stream was not reset")
	}
	for range 100 {
		if err := f.WriteData(f.stream, false, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	f.mustOpen(t, request("/"))
	if fate := f.fate(t); fate != "200" {
		t.Errorf("the next request is answered by %s", fate)
	}
	f.conn.Close()
	d.expectRefused(t, f.src, mark, 0)
}

// TestLeavingBeforeHTTP2 has a client break off as soon as it has made TLS, as
// one does that only looks whether somebody is there.
func TestLeavingBeforeHTTP2(t *testing.T) {
	d := startInside(t, "")
	mark, err := d.log.mark()
	if err != nil {
		t.Fatal(err)
	}
	conn := d.secured(t, nil)
	raw := conn.NetConn().(*tunnel).Conn.(*net.TCPConn)
	if err := raw.SetLinger(0); err != nil { // a reset, no end of file
		t.Fatal(err)
	}
	raw.Close()
	d.expectRefused(t, raw.LocalAddr().String(), mark, 0)
}

// TestStreamsCountAsFlows has one connection ask for more streams at once than
// its sandbox may have flows.
func TestStreamsCountAsFlows(t *testing.T) {
	const most = 8 // the tunnel is one of them
	d := startInside(t, fmt.Sprintf("limits: {flows_per_sandbox: %d}\n", most))
	f := d.frames(t)
	for range most + 4 {
		f.mustOpen(t, request("/slow"))
	}
	answered := func() map[string]int { return f.seen.statuses() }
	if !eventually(patience, func() bool { return answered()["200"]+answered()["429"] == most+4 }) ||
		answered()["200"] != most-1 || answered()["429"] != 5 {
		t.Errorf("%d streams were answered %v", most+4, answered())
	}
	for id := uint32(1); id <= f.stream; id += 2 {
		f.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	again := func() bool {
		f.mustOpen(t, request("/"))
		return f.fate(t) == "200"
	}
	if !eventually(settling, again) {
		t.Error("streams that are over still count")
	}
	f.conn.Close()
	d.settled(t)
}

func (s *seen) reset(id uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, reset := s.resets[id]
	return reset
}

// ended reports whether a GOAWAY came.
func (s *seen) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told
}

func (s *seen) statuses() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for _, status := range s.answers {
		n[status]++
	}
	return n
}
