package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzRequestHead: what is accepted is the same after it was written and
// parsed again, and net/http reads the same out of it.
func FuzzRequestHead(f *testing.F) {
	for _, head := range []string{
		"GET http://allowed.test/x?y HTTP/1.1\r\nHost: allowed.test\r\nX:  y \r\n\r\n",
		"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: y\r\n\r\n",
		"OPTIONS * HTTP/1.0\r\n\r\n",
		"GET / HTTP/1.1\nHost: a\n\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
	} {
		f.Add([]byte(head))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		req, n, err := ParseRequest(b, Limits{})
		if err != nil {
			return
		}
		again, m, err := ParseRequest(AppendRequest(nil, req.Method, req.Target, req.Fields), Limits{})
		again.Minor = req.Minor // written as 1.1 always
		if diff := cmp.Diff(req, again); req.Minor == 1 && (err != nil || m == 0 || diff != "") {
			t.Fatalf("written and parsed again: %v %s", err, diff)
		}
		if _, early, err := ParseRequest(b[:n-1], Limits{}); early != 0 || !errors.Is(err, ErrShort) {
			t.Fatalf("without its last byte: %v", err)
		}
		compareRequest(t, &req, b, n)
	})
}

// compareRequest compares with net/http, where a target is one for us at all.
func compareRequest(t *testing.T, req *Request, b []byte, n int) {
	target, err := ParseTarget(req.Method, req.Target)
	if err != nil || req.Fields.Has("Trailer") { // net/http judges Trailer by names
		return
	}
	theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		t.Fatalf("net/http refuses %q: %v", b[:n], err)
	}
	host := target.Authority
	if host == "" {
		host = req.Fields.Get("Host")
	}
	switch {
	case theirs.Method != req.Method || theirs.RequestURI != req.Target || theirs.ProtoMinor != req.Minor:
		t.Fatalf("%+v is %+v to net/http", req, theirs)
	case theirs.Host != host:
		t.Fatalf("host %q is %q to net/http", host, theirs.Host)
	}
	if target.Form != Authority && target.Form != Asterisk && theirs.URL.RawQuery != target.Query {
		t.Fatalf("query %q is %q to net/http", target.Query, theirs.URL.RawQuery)
	}
	for _, field := range req.Fields {
		if got := theirs.Header.Values(field.Name); isEndToEndToThem(field.Name) && !cmp.Equal(got, req.Fields.Values(field.Name)) {
			t.Fatalf("%s is %q to net/http", field.Name, got)
		}
	}
	compareBody(t, req, b[n:], theirs)
}

// isEndToEndToThem leaves out what net/http takes out of the header, or sets.
func isEndToEndToThem(name string) bool {
	return !isOneOf(name, []string{"Host", "Transfer-Encoding", "Content-Length", "Connection", "Pragma", "Cache-Control"})
}

func compareBody(t *testing.T, req *Request, rest []byte, theirs *http.Request) {
	framing, err := req.Body()
	if err != nil {
		t.Fatalf("accepted with bad framing: %v", err)
	}
	ours, err := io.ReadAll(NewBodyReader(bufio.NewReader(bytes.NewReader(rest)), framing, Limits{}))
	if err != nil {
		return
	}
	body, err := io.ReadAll(theirs.Body)
	if err != nil || !bytes.Equal(body, ours) {
		t.Fatalf("body %q is %q to net/http, %v", ours, body, err)
	}
}

// FuzzResponseHead: as FuzzRequestHead, for responses to GET.
func FuzzResponseHead(f *testing.F) {
	for _, head := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.0 404 \r\n\r\nall",
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n",
	} {
		f.Add([]byte(head))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		resp, n, err := parseWholeResponse(b, Limits{})
		if err != nil {
			return
		}
		again, _, err := parseWholeResponse(AppendResponse(nil, resp.Status, resp.Reason, resp.Fields), Limits{})
		if again.Minor = resp.Minor; resp.Minor == 1 && (err != nil || !cmp.Equal(resp, again)) {
			t.Fatalf("written and parsed again: %v %s", err, cmp.Diff(resp, again))
		}
		compareResponse(t, &resp, b, n)
	})
}

func compareResponse(t *testing.T, resp *Response, b []byte, n int) {
	if resp.Fields.Has("Trailer") || resp.Status < 200 && resp.Status != 101 {
		return
	}
	theirs, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
	framing, bad := resp.Body("GET")
	if err != nil || framing.Faulty { // net/http refuses what RFC 9112 has a proxy mend, and may end a faulty body elsewhere
		return
	}
	defer theirs.Body.Close()
	if bad != nil || theirs.StatusCode != resp.Status {
		t.Fatalf("status %d is %d to net/http, %v", resp.Status, theirs.StatusCode, err)
	}
	ours, err := io.ReadAll(NewBodyReader(bufio.NewReader(bytes.NewReader(b[n:])), framing, Limits{}))
	if err != nil {
		return
	}
	if body, err := io.ReadAll(theirs.Body); err != nil || !bytes.Equal(body, ours) {
		t.Fatalf("body %q is %q to net/http, %v", ours, body, err)
	}
}

// FuzzChunked: a body that is accepted is the same to net/http, the same after
// it was written and read again, and ends where it ends.
func FuzzChunked(f *testing.F) {
	for _, wire := range []string{
		"5\r\nhello\r\n0\r\n\r\n", "1;a=\"b\"\r\nx\r\n0\r\nX: y\r\n\r\n", "0\r\n\r\nGET / HTTP/1.1\r\n", "1\nx\r\n0\r\n\r\n", "00\r\n\r\n",
	} {
		f.Add([]byte(wire))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		br := bufio.NewReader(bytes.NewReader(wire))
		b := NewBodyReader(br, chunked, Limits{})
		body, err := io.ReadAll(b)
		if err != nil {
			return
		}
		theirs, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(wire)))
		if err != nil || !bytes.Equal(body, theirs) {
			t.Fatalf("%q is %q to net/http, %v", body, theirs, err)
		}
		rest, _ := io.ReadAll(br)
		if end := wire[:len(wire)-len(rest)]; !bytes.HasSuffix(end, []byte("\r\n")) {
			t.Fatalf("ends after %q", end)
		}
		var out bytes.Buffer
		bw := bufio.NewWriter(&out)
		w := NewChunkedWriter(bw)
		if _, err := w.Write(body); err != nil || w.Close(b.Trailer) != nil || bw.Flush() != nil {
			t.Fatal("cannot be written")
		}
		again := NewBodyReader(bufio.NewReader(&out), chunked, Limits{})
		if got, err := io.ReadAll(again); err != nil || !bytes.Equal(got, body) || !cmp.Equal(again.Trailer, b.Trailer) {
			t.Fatalf("read again: %q %v, %v", got, again.Trailer, err)
		}
	})
}
