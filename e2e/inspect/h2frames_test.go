package inspect

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"golang.org/x/net/http2"
)

// fateOf says what became of a stream: its status, a reset, or that of the
// whole connection.
func fateOf(s *world.Seen, id uint32) string {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	code, reset := s.Resets[id]
	switch {
	case s.Answers[id] != "":
		return s.Answers[id]
	case reset:
		return code.String()
	case s.Told:
		return "GOAWAY " + s.Goaway.String()
	}
	return ""
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

const (
	protocolError = "PROTOCOL_ERROR"
	badRequest    = "400"
)

// malformedHeads are heads that no upstream may see. %s is a path that is
// known to the origin.
func malformedHeads(path string) []malformedHead {
	good := world.RequestFields(path)
	return []malformedHead{
		{"no :method", protocolError, without(":method", good)},
		{"no :scheme", protocolError, without(":scheme", good)},
		{"no :path", protocolError, without(":path", good)},
		{"two :method", protocolError, append([]string{":method", "GET"}, good...)},
		{"two :path", protocolError, append([]string{":path", "/other"}, good...)},
		{"two :authority", protocolError, append([]string{":authority", "evil.test"}, good...)},
		{":authority and another Host", protocolError, append(good, "host", "evil.test")},
		{"two Host fields", protocolError, append(without(":authority", good), "host", "allowed.test", "host", "evil.test")},
		{"userinfo in :authority", protocolError, world.ReplaceField(":authority", "a@allowed.test", good)},
		{"an empty :path", protocolError, world.ReplaceField(":path", "", good)},
		{":path without a slash", protocolError, world.ReplaceField(":path", "x"+path, good)},
		{":path as a URL", protocolError, world.ReplaceField(":path", "https://allowed.test"+path, good)},
		{":path of * in a GET", badRequest, world.ReplaceField(":path", "*", good)},
		{":path with a fragment", badRequest, world.ReplaceField(":path", path+"#f", good)},
		{":path with a space", badRequest, world.ReplaceField(":path", path+" HTTP/1.1", good)},
		{":scheme ftp", protocolError, world.ReplaceField(":scheme", "ftp", good)},
		{":scheme http", badRequest, world.ReplaceField(":scheme", "http", good)},
		{":method with a space", badRequest, world.ReplaceField(":method", "GET /", good)},
		{":status", protocolError, append(good, ":status", "200")},
		{":protocol", protocolError, append(good, ":protocol", "websocket")},
		{"an unknown pseudo-header field", protocolError, append(good, ":evil", "x")},
		{"a pseudo-header field after others", protocolError, append(append([]string{"accept", "*/*"}, good...), "x", "y")},
		{"CONNECT", "405", []string{":method", "CONNECT", ":authority", "evil.test:443"}},
		{"CONNECT with a path", protocolError, world.ReplaceField(":method", "CONNECT", good)},
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
	world.Covers(t, "H2-05")
	d := world.StartInspecting(t, "")
	path := fmt.Sprintf("/stray-%d", time.Now().UnixNano())
	d.World.Origin.Mux.HandleFunc(path, func(_ http.ResponseWriter, r *http.Request) {
		if r.UserAgent() != "good" {
			t.Errorf("the origin saw %s %s %v", r.Method, r.URL, r.Header)
		}
	})
	for _, row := range malformedHeads(path) {
		t.Run(row.says, func(t *testing.T) {
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			f := d.Frames(t)
			mustOpen(t, f, row.fields)
			if fate := awaitFate(t, f); fate != row.fate {
				t.Errorf("answered by %s, want %s", fate, row.fate)
			}
			if !f.Seen.Ended() {
				mustOpen(t, f, world.RequestFields(path, "user-agent", "good"))
				if fate := awaitFate(t, f); fate != "200" {
					t.Errorf("then an ordinary request is answered by %s", fate)
				}
			}
			f.Conn.Close()
			expectRefused(t, d, f.Src, mark, 1)
		})
	}
	d.Settled(t)
}

// mustOpen opens a stream without a body, its head in as many frames as it
// takes.
func mustOpen(t *testing.T, f *world.Framer, fields []string) {
	t.Helper()
	const most = 16 << 10
	block := f.Encode(fields...)
	first := block[:min(most, len(block))]
	rest := block[len(first):]
	f.Next()
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.Stream, BlockFragment: first, EndStream: true, EndHeaders: len(rest) == 0})
	for len(rest) > 0 && err == nil {
		part := rest[:min(most, len(rest))]
		rest = rest[len(part):]
		err = f.WriteContinuation(f.Stream, len(rest) == 0, part)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitFate waits for what becomes of the newest stream.
func awaitFate(t *testing.T, f *world.Framer) (fate string) {
	t.Helper()
	if !world.Eventually(world.Patience, func() bool { fate = fateOf(&f.Seen, f.Stream); return fate != "" }) {
		t.Error("nothing was answered")
	}
	return fate
}

// expectRefused expects n records of what was malformed in one connection.
func expectRefused(t *testing.T, d *world.Daemon, src string, mark, n int) {
	t.Helper()
	var refused []record.Record
	over := func() (ended bool) {
		records, _ := d.Log.Of(src, mark)
		refused = nil
		for _, r := range records {
			ended = ended || r.Kind == record.KindClose && r.HTTP == nil
			if r.Kind == record.KindRefused {
				refused = append(refused, r)
			}
		}
		return ended
	}
	if !world.Eventually(world.Settling, over) {
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
	d := world.StartInspecting(t, "")
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	f := d.Frames(t)
	if err := f.Open(f.Encode(world.ReplaceField(":method", "PUT", world.RequestFields("/upload"))...), false); err != nil {
		t.Fatal(err)
	}
	if fate := awaitFate(t, f); fate != "403" {
		t.Errorf("a denied upload is answered by %s", fate)
	}
	if !world.Eventually(world.Patience, func() bool { return f.Seen.Reset(f.Stream) }) {
		t.Error("the stream was not reset")
	}
	for range 100 {
		if err := f.WriteData(f.Stream, false, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	mustOpen(t, f, world.RequestFields("/"))
	if fate := awaitFate(t, f); fate != "200" {
		t.Errorf("the next request is answered by %s", fate)
	}
	f.Conn.Close()
	expectRefused(t, d, f.Src, mark, 0)
}

// TestLeavingBeforeHTTP2 has a client break off as soon as it has made TLS, as
// one does that only looks whether somebody is there.
func TestLeavingBeforeHTTP2(t *testing.T) {
	d := world.StartInspecting(t, "")
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	conn := d.OpenTLS(t, nil)
	raw := conn.NetConn().(*world.Tunnel).Conn.(*net.TCPConn)
	if err := raw.SetLinger(0); err != nil { // a reset, no end of file
		t.Fatal(err)
	}
	raw.Close()
	expectRefused(t, d, raw.LocalAddr().String(), mark, 0)
}

// TestStreamsCountAsFlows has one connection ask for more streams at once than
// its sandbox may have flows.
func TestStreamsCountAsFlows(t *testing.T) {
	const most = 8 // the tunnel is one of them
	d := world.StartInspecting(t, fmt.Sprintf("limits: {flows_per_sandbox: %d}\n", most))
	f := d.Frames(t)
	for range most + 4 {
		mustOpen(t, f, world.RequestFields("/slow"))
	}
	answered := func() map[string]int { return statuses(&f.Seen) }
	if !world.Eventually(world.Patience, func() bool { return answered()["200"]+answered()["429"] == most+4 }) ||
		answered()["200"] != most-1 || answered()["429"] != 5 {
		t.Errorf("%d streams were answered %v", most+4, answered())
	}
	for id := uint32(1); id <= f.Stream; id += 2 {
		f.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	again := func() bool {
		mustOpen(t, f, world.RequestFields("/"))
		return awaitFate(t, f) == "200"
	}
	if !world.Eventually(world.Settling, again) {
		t.Error("streams that are over still count")
	}
	f.Conn.Close()
	d.Settled(t)
}

func statuses(s *world.Seen) map[string]int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	n := map[string]int{}
	for _, status := range s.Answers {
		n[status]++
	}
	return n
}
