package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// crlf turns the lines of a readable literal into lines of HTTP.
func crlf(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n" }

func isMalformed(err error, status int) bool {
	var bad *MalformedError
	return errors.As(err, &bad) && bad.Status == status
}

func TestParseRequest(t *testing.T) {
	head := crlf("POST http://allowed.test/x?y HTTP/1.1", "Host: allowed.test:80", "X-Empty:", "x-PADDED: \t a b\t ", "X-Bytes: \x80\xff", "")
	req, n, err := ParseRequest([]byte(head+"body"), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := Request{Method: "POST", Target: "http://allowed.test/x?y", Minor: 1, Fields: Fields{
		{"Host", "allowed.test:80"}, {"X-Empty", ""}, {"x-PADDED", "a b"}, {"X-Bytes", "\x80\xff"},
	}}
	if diff := cmp.Diff(want, req); diff != "" || n != len(head) {
		t.Errorf("%d bytes of %d, %s", n, len(head), diff)
	}
}

func TestParseRequestOfHTTP10(t *testing.T) {
	req, _, err := ParseRequest([]byte("GET / HTTP/1.0\r\n\r\n"), Limits{})
	if err != nil || req.Minor != 0 || len(req.Fields) != 0 {
		t.Errorf("got %+v, %v", req, err)
	}
}

func TestMalformedRequests(t *testing.T) {
	get := func(lines ...string) string {
		return crlf(append(append([]string{"GET / HTTP/1.1", "Host: a.test"}, lines...), "")...)
	}
	line := func(s string) string { return crlf(s, "Host: a.test", "") }
	for _, row := range []struct {
		name   string
		head   string
		status int
	}{
		// line endings
		{"bare LF everywhere", "GET / HTTP/1.1\nHost: a.test\n\n", 400},
		{"a bare LF after one field", "GET / HTTP/1.1\r\nHost: a.test\nX: y\r\n\r\n", 400},
		{"a bare LF as the empty line", "GET / HTTP/1.1\r\nHost: a.test\r\n\n", 400},
		{"a bare CR in a field", get("X: a\rHost: evil.test"), 400},
		{"a bare CR in the request line", line("GET / HTTP/1.1\rX: y"), 400},
		{"two CRs before an LF", "GET / HTTP/1.1\r\r\nHost: a.test\r\n\r\n", 400},
		{"an empty line first", "\r\n" + get(), 400},
		{"a bare LF first", "\n" + get(), 400},

		// request line
		{"no version", line("GET /"), 400},
		{"no target", line("GET HTTP/1.1"), 400},
		{"two spaces after the method", line("GET  / HTTP/1.1"), 400},
		{"two spaces before the version", line("GET /  HTTP/1.1"), 400},
		{"a space after the version", line("GET / HTTP/1.1 "), 400},
		{"a space before the method", line(" GET / HTTP/1.1"), 400},
		{"a tab for a space", line("GET\t/ HTTP/1.1"), 400},
		{"a space in the target", line("GET /a b HTTP/1.1"), 400},
		{"a NUL in the target", line("GET /\x00 HTTP/1.1"), 400},
		{"a tab in the target", line("CONNECT evil.test\t.allowed.test:443 HTTP/1.1"), 400},
		{"a NUL in a CONNECT target", line("CONNECT evil.test\x00.allowed.test:443 HTTP/1.1"), 400},
		{"UTF-8 in the target", line("GET http://allowed.test。evil.test/ HTTP/1.1"), 400},
		{"a method with a colon", line("GE:T / HTTP/1.1"), 400},
		{"an empty method", line(" / HTTP/1.1"), 400},
		{"HTTP/1.2", line("GET / HTTP/1.2"), 400},
		{"HTTP/1.10", line("GET / HTTP/1.10"), 400},
		{"HTTP/01.1", line("GET / HTTP/01.1"), 400},
		{"http/1.1", line("GET / http/1.1"), 400},
		{"HTTPS/1.1", line("GET / HTTPS/1.1"), 400},
		{"HTTP/1", line("GET / HTTP/1"), 400},
		{"HTTP/0.9", line("GET / HTTP/0.9"), 505},
		{"HTTP/2.0", line("GET / HTTP/2.0"), 505},

		// fields
		{"a field folded with a space", get("X: a", " b"), 400},
		{"a field folded with a tab", get("X: a", "\tb"), 400},
		{"a folded Host", crlf("GET / HTTP/1.1", "Host:", " a.test", ""), 400},
		{"whitespace before the first field", crlf("GET / HTTP/1.1", " Host: a.test", ""), 400},
		{"a space before the colon", crlf("GET / HTTP/1.1", "Host : a.test", ""), 400},
		{"a tab before the colon", get("X\t: y"), 400},
		{"a space in the name", get("X Y: 1"), 400},
		{"a NUL in the name", get("X\x00: 1"), 400},
		{"a name of no characters", get(": v"), 400},
		{"a name that is not ASCII", get("Xé: 1"), 400},
		{"a name in brackets", get("[X]: 1"), 400},
		{"a field without a colon", get("X"), 400},
		{"a control character in the value", get("X: \x01"), 400},
		{"a NUL in the value", get("X: a\x00b"), 400},
		{"DEL in the value", get("X: \x7f"), 400},
		{"a vertical tab around the value", get("X: \x0bchunked"), 400},

		// Host
		{"no Host", crlf("GET / HTTP/1.1", ""), 400},
		{"two Hosts", get("Host: evil.test"), 400},
		{"two equal Hosts", get("hOST: a.test"), 400},
		{"two Hosts in HTTP/1.0", crlf("GET / HTTP/1.0", "Host: a.test", "Host: a.test", ""), 400},
		{"an empty Host", crlf("GET / HTTP/1.1", "Host:", ""), 400},
		{"a list in Host", crlf("GET / HTTP/1.1", "Host: allowed.test, evil.test", ""), 400},
		{"a list without a space in Host", crlf("GET / HTTP/1.1", "Host: allowed.test,evil.test", ""), 400},
		{"two words in Host", crlf("GET / HTTP/1.1", "Host: allowed.test evil.test", ""), 400},
		{"a path in Host", crlf("GET / HTTP/1.1", "Host: allowed.test/evil", ""), 400},
		{"userinfo in Host", crlf("GET / HTTP/1.1", "Host: allowed.test@evil.test", ""), 400},
		{"brackets around a name in Host", crlf("GET / HTTP/1.1", "Host: [allowed.test]", ""), 400},

		// framing
		{"CL and TE", get("Content-Length: 44", "Transfer-Encoding: chunked"), 400},
		{"TE and CL", get("Transfer-Encoding: chunked", "Content-Length: 4"), 400},
		{"CL 0 and TE", get("Content-Length: 0", "Transfer-Encoding: chunked"), 400},
		{"TE in HTTP/1.0", crlf("POST / HTTP/1.0", "Host: a.test", "Transfer-Encoding: chunked", ""), 400},
		{"TE gzip", get("Transfer-Encoding: gzip"), 400},
		{"TE identity", get("Transfer-Encoding: identity"), 400},
		{"TE gzip, chunked", get("Transfer-Encoding: gzip, chunked"), 400},
		{"TE chunked, gzip", get("Transfer-Encoding: chunked, gzip"), 400},
		{"TE chunked, chunked", get("Transfer-Encoding: chunked, chunked"), 400},
		{"TE chunked twice", get("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400},
		{"TE chunked and an empty element", get("Transfer-Encoding: chunked,"), 400},
		{"TE with a parameter", get("Transfer-Encoding: chunked;q=1"), 400},
		{"TE in quotes", get(`Transfer-Encoding: "chunked"`), 400},
		{"TE xchunked", get("Transfer-Encoding: xchunked"), 400},
		{"TE empty", get("Transfer-Encoding:"), 400},
		{"TE with a Kelvin sign", get("Transfer-Encoding: chun\u212Aed"), 400},
		{"two different CLs", get("Content-Length: 1", "Content-Length: 2"), 400},
		{"two equal CLs", get("Content-Length: 1", "Content-Length: 1"), 400},
		{"CL 1,1", get("Content-Length: 1,1"), 400},
		{"CL 1, 1", get("Content-Length: 1, 1"), 400},
		{"CL +1", get("Content-Length: +1"), 400},
		{"CL -1", get("Content-Length: -1"), 400},
		{"CL 0x1", get("Content-Length: 0x1"), 400},
		{"CL 1_0", get("Content-Length: 1_0"), 400},
		{"CL 00", get("Content-Length: 00"), 400},
		{"CL 01", get("Content-Length: 01"), 400},
		{"CL 1 1", get("Content-Length: 1 1"), 400},
		{"CL empty", get("Content-Length:"), 400},
		{"CL 2^63", get("Content-Length: 9223372036854775808"), 400},
		{"CL 2^64", get("Content-Length: 18446744073709551616"), 400},
		{"CL in other digits", get("Content-Length: \u0661"), 400},
		{"CL in CONNECT", crlf("CONNECT a.test:443 HTTP/1.1", "Host: a.test:443", "Content-Length: 5", ""), 400},
		{"TE in CONNECT", crlf("CONNECT a.test:443 HTTP/1.1", "Host: a.test:443", "Transfer-Encoding: chunked", ""), 400},
	} {
		t.Run(row.name, func(t *testing.T) {
			if req, n, err := ParseRequest([]byte(row.head), Limits{}); !isMalformed(err, row.status) || n != 0 {
				t.Errorf("%d bytes, %+v, %v", n, req, err)
			}
			br := bufio.NewReader(strings.NewReader(row.head))
			if _, err := ReadRequest(br, Limits{}); !isMalformed(err, row.status) {
				t.Errorf("ReadRequest: %v", err)
			}
			if left, _ := br.Peek(br.Buffered()); string(left) != row.head {
				t.Errorf("ReadRequest consumed bytes: %q is left", left)
			}
		})
	}
}

func TestMalformedHostIsMarked(t *testing.T) {
	for head, want := range map[string]bool{
		crlf("GET / HTTP/1.1", "Host: a,b", ""):         true,
		crlf("GET / HTTP/1.1", "Host: a", "X Y: 1", ""): false,
	} {
		var bad *MalformedError
		if _, _, err := ParseRequest([]byte(head), Limits{}); !errors.As(err, &bad) || bad.Host != want {
			t.Errorf("%q: %v", head, err)
		}
	}
}

func TestLimits(t *testing.T) {
	field := "X: y\r\n"
	start := "GET / HTTP/1.1\r\nHost: a.test\r\n"
	lim := Limits{Bytes: len(start) + 10*len(field) + 2, Fields: 11}
	whole := start + strings.Repeat(field, 10) + "\r\n"
	for _, row := range []struct {
		name string
		head string
		ok   bool
	}{
		{"both limits met", whole, true},
		{"a byte more", start + strings.Repeat(field, 9) + "X: yz\r\n\r\n", false},
		{"a field more", start + strings.Repeat("X:\r\n", 11) + "\r\n", false},
		{"endless", strings.Repeat("x", lim.Bytes), false},
		{"an endless field", start + strings.Repeat("x", 200), false},
	} {
		_, _, err := ParseRequest([]byte(row.head), lim)
		if (err == nil) != row.ok || err != nil && !isMalformed(err, 431) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	if _, _, err := ParseRequest([]byte(strings.Repeat("x", lim.Bytes-1)), lim); !errors.Is(err, ErrShort) {
		t.Errorf("just below the limit: %v", err)
	}
}

func TestManyFields(t *testing.T) {
	head := "GET / HTTP/1.1\r\nHost: a.test\r\n" + strings.Repeat("X: y\r\n", 10000) + "\r\n"
	if _, _, err := ParseRequest([]byte(head), Limits{}); !isMalformed(err, 431) {
		t.Error(err)
	}
}

// TestEveryPrefix: a good head is short until it is whole, and a Scanner that
// sees it grow says what ParseRequest says.
func TestEveryPrefix(t *testing.T) {
	head := []byte(crlf("GET http://a.test/ HTTP/1.1", "Host: a.test", "Accept: */*", ""))
	var s Scanner
	for n := range len(head) {
		if _, _, err := ParseRequest(head[:n], Limits{}); !errors.Is(err, ErrShort) {
			t.Errorf("%q: %v", head[:n], err)
		}
		if _, err := s.Scan(head[:n], Limits{}); !errors.Is(err, ErrShort) || s.seen != n {
			t.Errorf("scanned %q up to %d: %v", head[:n], s.seen, err)
		}
	}
	if n, err := s.Scan(append(bytes.Clone(head), "more"...), Limits{}); n != len(head) || err != nil {
		t.Errorf("%d of %d bytes, %v", n, len(head), err)
	}
}

func TestMalformedAsSoonAsItIsSeen(t *testing.T) {
	for _, head := range []string{"\r\n", "\n", "GET / HTTP/1.1\n", "GET / HTTP/1.1\rX\r\n"} {
		if _, _, err := ParseRequest([]byte(head), Limits{}); !isMalformed(err, 400) {
			t.Errorf("%q: %v", head, err)
		}
		var s Scanner
		if _, err := s.Scan([]byte(head), Limits{}); !isMalformed(err, 400) {
			t.Errorf("%q: scanned %v", head, err)
		}
	}
}

func TestReadRequestPipelined(t *testing.T) {
	one := crlf("GET http://a.test/1 HTTP/1.1", "Host: a.test", "")
	two := crlf("GET http://a.test/2 HTTP/1.1", "Host: a.test", "")
	br := bufio.NewReader(iotest.OneByteReader(strings.NewReader(one + two)))
	for _, target := range []string{"http://a.test/1", "http://a.test/2"} {
		if req, err := ReadRequest(br, Limits{}); err != nil || req.Target != target {
			t.Errorf("got %q, %v", req.Target, err)
		}
	}
	if _, err := ReadRequest(br, Limits{}); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestReadRequestErrors(t *testing.T) {
	for _, row := range []struct {
		name string
		in   io.Reader
		want func(error) bool
	}{
		{"cut short", strings.NewReader("GET / HT"), func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		{"broken", iotest.ErrReader(io.ErrNoProgress), func(err error) bool { return errors.Is(err, io.ErrNoProgress) }},
		{"larger than the buffer", strings.NewReader("GET /" + strings.Repeat("x", 100)), func(err error) bool { return isMalformed(err, 431) }},
	} {
		if _, err := ReadRequest(bufio.NewReaderSize(row.in, 64), Limits{}); !row.want(err) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

func TestPersistent(t *testing.T) {
	for _, row := range []struct {
		minor     int
		field     Field
		req, resp bool
	}{
		{1, Field{"X", "close"}, true, true},
		{1, Field{"Connection", "x, Close"}, false, false},
		{1, Field{"Proxy-Connection", "close"}, false, true},
		{0, Field{"Connection", "keep-alive"}, false, false},
	} {
		req := Request{Minor: row.minor, Fields: Fields{row.field}}
		resp := Response{Minor: row.minor, Fields: Fields{row.field}}
		if req.Persistent() != row.req || resp.Persistent() != row.resp {
			t.Errorf("%+v: request %t, response %t", row, req.Persistent(), resp.Persistent())
		}
	}
}

func TestExpectsContinue(t *testing.T) {
	for _, row := range []struct {
		minor  int
		fields Fields
		want   bool
		bad    bool
	}{
		{1, nil, false, false},
		{1, Fields{{"Expect", "100-Continue"}}, true, false},
		{0, Fields{{"Expect", "100-continue"}}, false, false},
		{1, Fields{{"Expect", "100-continuE, x"}}, false, true},
		{1, Fields{{"Expect", "200-ok"}}, false, true},
		{1, Fields{{"Expect", ""}}, false, true},
		{1, Fields{{"Expect", "100-continue"}, {"Expect", "100-continue"}}, false, true},
	} {
		got, err := (&Request{Minor: row.minor, Fields: row.fields}).ExpectsContinue()
		if got != row.want || row.bad != isMalformed(err, 417) {
			t.Errorf("%+v: %t, %v", row, got, err)
		}
	}
}
