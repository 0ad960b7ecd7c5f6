package proxy

//lint:file-ignore SA1019 net/http has no HTTP/2 on a connection that it is given and that can be read along with, see docs/decisions/0006

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/record"
)

// TestARequestIsAsLongAsItSays: content-length is the sum of the DATA (RFC 9113 §8.1.1). No
// request that differs reaches its end at the upstream.
func TestARequestIsAsLongAsItSays(t *testing.T) {
	const ends, trailer = "ends", "trailer"
	for _, row := range []struct {
		says, length string
		data         []string // frames of the body, then how it ends
		want         string   // the status; "reset": none
	}{
		{"5 of 5", "5", []string{"he", "llo", ends}, "200"},
		{"5 of 5, and a trailer", "5", []string{"hello", trailer}, "200"},
		{"none of none at once", "0", nil, "200"},
		{"none of none", "0", []string{"", ends}, "200"},
		{"5 of any", "", []string{"hello", ends}, "200"},
		{"nothing, where 5 are said", "5", nil, "400"},
		{"nothing, where 5 are said, and an end of its own", "5", []string{"", ends}, "400"},
		{"3 of 5", "5", []string{"hel", ends}, "400"},
		{"3 of 5, and a trailer", "5", []string{"hel", trailer}, "400"},
		{"6 of 5 at once", "5", []string{"hello!", ends}, "reset"},
		{"6 of 5", "5", []string{"hello", "!", ends}, "reset"},
		{"6 of none", "0", []string{"hello!", ends}, "reset"},
	} {
		t.Run(row.says, func(t *testing.T) {
			t.Parallel()
			w := newInspectWorld(t, inspectPolicy, nil)
			whole := make(chan bool, 1)
			o := w.pki.secureOrigin(t, true, func(_ http.ResponseWriter, r *http.Request) {
				_, err := io.Copy(io.Discard, r.Body)
				whole <- err == nil
			}, nil)
			tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
			s := startSpeaking(t, tunnel)
			head := []string{":method", "POST", ":scheme", "https", ":authority", "allowed.test:" + o.port, ":path", "/public/x"}
			if row.length != "" {
				head = append(head, "content-length", row.length)
			}
			s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.encode(head...), EndHeaders: true, EndStream: row.data == nil})
			for i, data := range row.data {
				switch last := i == len(row.data)-2; {
				case data == ends:
				case data == trailer:
					s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.encode("x-after", "1"), EndHeaders: true, EndStream: true})
				default:
					s.frames.WriteData(1, last && row.data[i+1] == ends, []byte(data))
				}
			}
			s.flush(t)
			if got := s.answered(t); got != row.want {
				t.Errorf("answered %s", got)
			}
			if row.want != "200" {
				refused := w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRefused })
				if refused.Decision.Class != "malformed-request" {
					t.Errorf("recorded %+v", refused.Decision)
				}
			}
			tunnel.NetConn().Close()
			w.closed(t)
			select {
			case got := <-whole:
				if got != (row.want == "200") {
					t.Errorf("the upstream read a whole request: %v", got)
				}
			default:
				if row.want == "200" {
					t.Error("no request came")
				}
			}
		})
	}
}

// answered reads to the end of a stream, and returns the status in its head, or "reset".
func (s *speaking) answered(t *testing.T) (status string) {
	t.Helper()
	s.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	s.in.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	s.until(t, func(f http2.Frame) bool {
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			status = f.PseudoValue("status")
			return f.StreamEnded()
		case *http2.DataFrame:
			return f.StreamEnded()
		case *http2.RSTStreamFrame:
			if status == "" || f.ErrCode != http2.ErrCodeNo {
				status = "reset"
			}
			return true
		}
		return false
	})
	return status
}

// TestAnUnendedRequestWithoutABodyIsGivenItsTime: it says content-length: 0 and does not end.
func TestAnUnendedRequestWithoutABodyIsGivenItsTime(t *testing.T) {
	t.Parallel()
	w := newLimitedWorld(t, inspectPolicy, Limits{Idle: time.Second}, nil)
	o := w.pki.secureOrigin(t, true, func(http.ResponseWriter, *http.Request) { t.Error("it went up") }, nil)
	tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
	s := startSpeaking(t, tunnel)
	head := s.encode(":method", "POST", ":scheme", "https", ":authority", "allowed.test:"+o.port, ":path", "/public/x", "content-length", "0")
	s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true})
	s.flush(t)
	if got := s.answered(t); got != "504" {
		t.Errorf("answered %s", got)
	}
	tunnel.NetConn().Close()
	w.closed(t)
}

// TestAnAnswerIsAsLongAsItSays, or its stream is reset. 304 and 204 have no content, whatever
// length they name (RFC 9110 §6.4.1).
func TestAnAnswerIsAsLongAsItSays(t *testing.T) {
	for _, row := range []struct {
		says, method, status, length string
		data                         []string // nil: the head ends the stream
		want                         string
	}{
		{"5 of 5", "GET", "200", "5", []string{"he", "llo"}, "200"},
		{"none of none", "GET", "200", "0", nil, "200"},
		{"a length to HEAD", "HEAD", "200", "5", nil, "200"},
		{"a length with 304", "GET", "304", "5", nil, "304"},
		{"a length with 304 and an end of its own", "GET", "304", "5", []string{""}, "304"},
		{"nothing, where 5 are said", "GET", "200", "5", nil, "reset"},
		{"3 of 5", "GET", "200", "5", []string{"hel"}, "reset"},
		{"6 of 5 at once", "GET", "200", "5", []string{"hello!"}, "reset"},
		{"6 of 5", "GET", "200", "5", []string{"hello", "!"}, "reset"},
		{"1 of none", "GET", "200", "0", []string{"!"}, "reset"},
		{"content with 304", "GET", "304", "5", []string{"hello"}, "reset"},
		{"content with 204", "GET", "204", "", []string{"hello"}, "reset"},
	} {
		t.Run(row.says, func(t *testing.T) {
			t.Parallel()
			w := newInspectWorld(t, inspectPolicy, nil)
			o := w.pki.rawOrigin(t, func(c net.Conn) {
				f := serveFrames(c)
				id := f.request()
				var block strings.Builder
				enc := hpack.NewEncoder(&block)
				enc.WriteField(hpack.HeaderField{Name: ":status", Value: row.status})
				if row.length != "" {
					enc.WriteField(hpack.HeaderField{Name: "content-length", Value: row.length})
				}
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(block.String()), EndHeaders: true, EndStream: row.data == nil})
				for i, data := range row.data {
					f.WriteData(id, i == len(row.data)-1, []byte(data))
				}
				io.Copy(io.Discard, c)
			}, "h2")
			tunnel := w.tunnel(t, "allowed.test", o.port, "h2")
			s := startSpeaking(t, tunnel)
			block := s.encode(":method", row.method, ":scheme", "https", ":authority", "allowed.test:"+o.port, ":path", "/public/x")
			s.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, EndStream: true})
			s.flush(t)
			if got := s.answered(t); got != row.want {
				t.Errorf("answered %s", got)
			}
			tunnel.NetConn().Close()
			w.closed(t)
		})
	}
}
