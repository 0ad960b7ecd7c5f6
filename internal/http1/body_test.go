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

// readBody reads one body from in, which goes on with "NEXT", and reports
// whether the reader stood there afterwards.
func readBody(in io.Reader, f Framing) (body string, trailer Fields, err error) {
	br := bufio.NewReader(in)
	b := NewBodyReader(br, f, Limits{Bytes: 200, Fields: 4})
	content, err := io.ReadAll(b)
	if err != nil {
		return string(content), nil, err
	}
	if next, err := io.ReadAll(br); string(next) != "NEXT" {
		return "", nil, errors.New("does not stand at the next message: " + string(next) + err.Error())
	}
	return string(content), b.Trailer, nil
}

var chunked = Framing{Kind: BodyChunked, Length: -1}

func TestBodies(t *testing.T) {
	for _, row := range []struct {
		name    string
		framing Framing
		wire    string
		body    string
		trailer Fields
	}{
		{"none", Framing{}, "", "", nil},
		{"a length of 0", Framing{Kind: BodyLength, Length: 0}, "", "", nil},
		{"a length of 5", Framing{Kind: BodyLength, Length: 5}, "hello", "hello", nil},
		{"no chunks", chunked, "0\r\n\r\n", "", nil},
		{"two chunks", chunked, "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "hello world", nil},
		{"hexadecimal sizes", chunked, "0A\r\n0123456789\r\n0000000000000001\r\nx\r\n000\r\n\r\n", "0123456789x", nil},
		{"CRLF in the data", chunked, "2\r\n\r\n\r\n0\r\n\r\n", "\r\n", nil},
		{"extensions", chunked, "1;a\r\nx\r\n1;a=b;c=\"d;\\\"\xff\"\r\ny\r\n0;z\r\n\r\n", "xy", nil},
		{"trailers", chunked, "0\r\nX-Sum: 1 \r\ngrpc-status:0\r\n\r\n", "", Fields{{"X-Sum", "1"}, {"grpc-status", "0"}}},
		{"forbidden trailers", chunked, "0\r\nHost: evil.test\r\nauthorization: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "", nil},
		{"forbidden trailers beside another", chunked, "0\r\nX: 1\r\nConnection: X\r\nif-match: y\r\nSet-Cookie: z\r\n\r\n", "", Fields{{"X", "1"}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			for how, in := range map[string]io.Reader{
				"at once":      strings.NewReader(row.wire + "NEXT"),
				"byte by byte": iotest.OneByteReader(strings.NewReader(row.wire + "NEXT")),
				"with EOF":     iotest.DataErrReader(strings.NewReader(row.wire + "NEXT")),
			} {
				body, trailer, err := readBody(in, row.framing)
				if diff := cmp.Diff(row.trailer, trailer); err != nil || body != row.body || diff != "" {
					t.Errorf("%s: %q, %v %s", how, body, err, diff)
				}
			}
			for n := range len(row.wire) {
				if _, _, err := readBody(strings.NewReader(row.wire[:n]), row.framing); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("cut after %q: %v", row.wire[:n], err)
				}
			}
		})
	}
}

func TestBodyUntilClose(t *testing.T) {
	br := bufio.NewReader(iotest.DataErrReader(strings.NewReader("all of it")))
	got, err := io.ReadAll(NewBodyReader(br, Framing{Kind: BodyUntilClose, Length: -1}, Limits{}))
	if string(got) != "all of it" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestLastBytesWithEOF: a body whose end and whose connection's end come in
// one read, past the buffer.
func TestLastBytesWithEOF(t *testing.T) {
	in := strings.Repeat("x", 100)
	br := bufio.NewReaderSize(iotest.DataErrReader(strings.NewReader(in)), 16)
	b := NewBodyReader(br, Framing{Kind: BodyLength, Length: 100}, Limits{})
	if got, err := io.ReadAll(b); string(got) != in || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestCutWithEOF: bytes that are too few are so even where EOF comes with them.
func TestCutWithEOF(t *testing.T) {
	br := bufio.NewReaderSize(iotest.DataErrReader(strings.NewReader(strings.Repeat("x", 60))), 16)
	b := NewBodyReader(br, Framing{Kind: BodyLength, Length: 100}, Limits{})
	if got, err := io.ReadAll(b); len(got) != 60 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestMalformedChunks(t *testing.T) {
	for _, row := range []struct{ name, wire string }{
		{"0x1", "0x1\r\nx\r\n0\r\n\r\n"},
		{"a plus sign", "+1\r\nx\r\n0\r\n\r\n"},
		{"a minus sign", "-1\r\nx\r\n0\r\n\r\n"},
		{"an underscore", "1_0\r\nx\r\n0\r\n\r\n"},
		{"a space before the size", " 1\r\nx\r\n0\r\n\r\n"},
		{"a space after the size", "1 \r\nx\r\n0\r\n\r\n"},
		{"a tab after the size", "1\t\r\nx\r\n0\r\n\r\n"},
		{"no size, and the end", "\r\n\r\n"},
		{"no size before an extension, and the end", ";a\r\n\r\n"},
		{"2^63, and the end", "8000000000000000\r\n\r\n"},
		{"a bare LF after an extension", "1;\nx\r\n0\r\n\r\n"},
		{"a bare LF after a trailer", "0\r\nX: y\n\r\n"},
		{"two other bytes for CRLF after the data", "1\r\nxab0\r\n\r\n"},
		{"no size", "\r\nx\r\n0\r\n\r\n"},
		{"no size before an extension", ";a\r\nx\r\n0\r\n\r\n"},
		{"not a digit", "g\r\nx\r\n0\r\n\r\n"},
		{"17 digits", "00000000000000001\r\nx\r\n0\r\n\r\n"},
		{"17 digits that overflow to 1", "10000000000000001\r\nx\r\n0\r\n\r\n"},
		{"2^63", "8000000000000000\r\nx\r\n0\r\n\r\n"},
		{"2^64-1", "ffffffffffffffff\r\nx\r\n0\r\n\r\n"},
		{"an empty extension", "1;\r\nx\r\n0\r\n\r\n"},
		{"an extension after a space", "1 ;a\r\nx\r\n0\r\n\r\n"},
		{"an extension without a value", "1;a=\r\nx\r\n0\r\n\r\n"},
		{"an extension with an open quote", "1;a=\"b\r\nx\r\n0\r\n\r\n"},
		{"an extension with an escaped end", "1;a=\"b\\\r\nx\r\n0\r\n\r\n"},
		{"a control character in an extension", "1;a=\"\x01\"\r\nx\r\n0\r\n\r\n"},
		{"a bare CR in an extension", "1;a\r=b\r\nx\r\n0\r\n\r\n"},
		{"a bare LF after the size", "1\nx\r\n0\r\n\r\n"},
		{"a bare LF after the data", "1\r\nx\n0\r\n\r\n"},
		{"a bare CR after the size", "1\rx\r\n0\r\n\r\n"},
		{"a bare CR after the data", "1\r\nx\r0\r\n\r\n"},
		{"no CRLF after the data", "1\r\nx0\r\n\r\n"},
		{"more data than the size", "1\r\nxy\r\n0\r\n\r\n"},
		{"a bare LF at the end", "0\r\n\n"},
		{"a folded trailer", "0\r\nX: a\r\n b\r\n\r\n"},
		{"a trailer without a colon", "0\r\nGET / HTTP/1.1\r\n\r\n"},
		{"a space in a trailer's name", "0\r\nX : a\r\n\r\n"},
		{"a NUL in a trailer", "0\r\nX: \x00\r\n\r\n"},
		{"a bad size after a good chunk", "1\r\nx\r\nz\r\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := NewBodyReader(bufio.NewReader(strings.NewReader(row.wire)), chunked, Limits{})
			_, err := io.ReadAll(b)
			if !isMalformed(err, 400) {
				t.Fatal(err)
			}
			if _, again := b.Read(make([]byte, 1)); again != err { //nolint:errorlint // the same error stays
				t.Errorf("then %v", again)
			}
		})
	}
}

func TestChunkedLimits(t *testing.T) {
	manyExtensions := strings.Repeat("1;"+strings.Repeat("a", 99)+"\r\nx\r\n", 41) + "0\r\n\r\n"
	for _, row := range []struct {
		name, wire string
		status     int
	}{
		{"an extension of 64 KB", "1;" + strings.Repeat("a", 64<<10) + "\r\nx\r\n0\r\n\r\n", 431},
		{"an extension of 4 KiB", "1;" + strings.Repeat("a", 4<<10) + "\r\nx\r\n0\r\n\r\n", 400},
		{"4 KiB of extensions over many chunks", manyExtensions, 400},
		{"too many trailers", "0\r\n" + strings.Repeat("X: y\r\n", 5) + "\r\n", 431},
		{"too long trailers", "0\r\nX: " + strings.Repeat("y", 200) + "\r\n\r\n", 431},
	} {
		b := NewBodyReader(bufio.NewReaderSize(strings.NewReader(row.wire), 8<<10), chunked, Limits{Bytes: 200, Fields: 4})
		if _, err := io.ReadAll(b); !isMalformed(err, row.status) {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

func TestChunkedWriter(t *testing.T) {
	var wire bytes.Buffer
	bw := bufio.NewWriter(&wire)
	w := NewChunkedWriter(bw)
	for _, s := range []string{"hello", "", strings.Repeat("x", 17)} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := errors.Join(w.Close(Fields{{"X", "1"}}), bw.Flush()); err != nil {
		t.Fatal(err)
	}
	if want := "5\r\nhello\r\n11\r\n" + strings.Repeat("x", 17) + "\r\n0\r\nX: 1\r\n\r\n"; wire.String() != want {
		t.Errorf("got %q", wire.String())
	}
}

func TestChunkedWriterPassesErrors(t *testing.T) {
	bw := bufio.NewWriterSize(brokenWriter{}, 16)
	w := NewChunkedWriter(bw)
	_, err := w.Write(make([]byte, 100))
	if !errors.Is(err, io.ErrClosedPipe) || !errors.Is(w.Close(nil), io.ErrClosedPipe) {
		t.Error(err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
