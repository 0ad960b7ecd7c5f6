package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadResponse(t *testing.T) {
	for line, want := range map[string]Response{
		"HTTP/1.1 200 OK":                {Status: 200, Reason: "OK", Minor: 1},
		"HTTP/1.1 200 ":                  {Status: 200, Minor: 1},
		"HTTP/1.1 200":                   {Status: 200, Minor: 1},
		"HTTP/1.2 200":                   {Status: 200, Minor: 1},
		"HTTP/1.0 404 Not  Found ":       {Status: 404, Reason: "Not  Found "},
		"HTTP/1.1 999 x\xe9":             {Status: 999, Reason: "x\xe9", Minor: 1},
		"HTTP/1.1 200 O\x00K":            {Status: 200, Reason: "O K", Minor: 1},
		"HTTP/1.1 100 Continue":          {Status: 100, Reason: "Continue", Minor: 1},
		"HTTP/1.1 200 OK\r\nA : b":       {Status: 200, Reason: "OK", Minor: 1, Fields: Fields{{"A", "b"}}},
		"HTTP/1.1 200 OK\r\nA\t :b \t":   {Status: 200, Reason: "OK", Minor: 1, Fields: Fields{{"A", "b"}}},
		"HTTP/1.1 200 OK\r\nA: b\r\n\t":  {Status: 200, Reason: "OK", Minor: 1, Fields: Fields{{"A", "b"}}},
		"HTTP/1.1 200 OK\r\nA: b\r\n c":  {Status: 200, Reason: "OK", Minor: 1, Fields: Fields{{"A", "b c"}}},
		"HTTP/1.1 200 OK\r\nA: b\x00\rc": {Status: 200, Reason: "OK", Minor: 1, Fields: Fields{{"A", "b  c"}}},
		"HTTP/1.1 200 OK\nA: b":          {Status: 200, Reason: "OK", Minor: 1, Fields: Fields{{"A", "b"}}},
	} {
		for _, end := range []string{"\r\n\r\n", "\n\n", "\r\n\n"} {
			head := line + "\r\nX: y" + end
			want := want
			want.Fields = append(slices.Clone(want.Fields), Field{"X", "y"})
			br := bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(head+"body")), 16)
			got, err := ReadResponse(br, Limits{})
			if err != nil || got.Status != want.Status || got.Reason != want.Reason || got.Minor != want.Minor || !slices.Equal(got.Fields, want.Fields) {
				t.Errorf("%q: %+v, %v", head, got, err)
			}
			if rest, _ := io.ReadAll(br); string(rest) != "body" {
				t.Errorf("%q leaves %q", head, rest)
			}
		}
	}
}

func TestMalformedResponses(t *testing.T) {
	for _, head := range []string{
		"\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1  200 OK\r\n\r\n",
		"HTTP/1.1 20 OK\r\n\r\n",
		"HTTP/1.1 2000 OK\r\n\r\n",
		"HTTP/1.1 099 OK\r\n\r\n",
		"HTTP/1.1 +20 OK\r\n\r\n",
		"HTTP/1.1\r\n\r\n",
		"HTTP/2.0 200 OK\r\n\r\n",
		"ICY 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\n X: a\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX y: a\r\n\r\n",
		"HTTP/1.1 200 OK\r\n: a\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
	} {
		if resp, err := ReadResponse(bufio.NewReader(strings.NewReader(head)), Limits{}); !isMalformed(err, 400) {
			t.Errorf("%q: %+v, %v", head, resp, err)
		}
	}
	for head, want := range map[string]error{"": io.EOF, "HTTP/1.1 200 OK\r\nX: ": io.ErrUnexpectedEOF} {
		if _, err := ReadResponse(bufio.NewReaderSize(strings.NewReader(head), 16), Limits{}); !errors.Is(err, want) {
			t.Errorf("%q: %v", head, err)
		}
	}
}

// TestLargeResponseHeads are longer than the reader's buffer, up to a limit of their own.
func TestLargeResponseHeads(t *testing.T) {
	head := func(fields, bytes int) string {
		return "HTTP/1.1 200 OK\r\nBig: " + strings.Repeat("y", bytes) + "\r\n" + strings.Repeat("X: y\r\n", fields-1) + "\r\n"
	}
	grown := 0
	lim := Limits{Bytes: 256 << 10, Fields: 1000, Grow: func(n int) bool { grown += n; return true }}
	read := func(s string) (Response, error) {
		return ReadResponse(bufio.NewReaderSize(iotest.HalfReader(strings.NewReader(s)), 4096), lim)
	}
	if resp, err := read(head(1000, 200_000)); err != nil || len(resp.Fields) != 1000 || len(resp.Fields.Get("Big")) != 200_000 {
		t.Errorf("%d fields, %v", len(resp.Fields), err)
	}
	if grown < 200_000 {
		t.Errorf("memory for %d bytes was asked for", grown)
	}
	var bad *MalformedError
	if _, err := read(head(1001, 1)); !errors.As(err, &bad) || !bad.Large {
		t.Errorf("1001 fields: %v", err)
	}
	if _, err := read(head(1, 256<<10)); !errors.As(err, &bad) || !bad.Large || bad.Field != "Big" {
		t.Errorf("a long field: %v", err)
	}
	lim.Grow = func(int) bool { return false }
	if _, err := read(head(1, 100_000)); err == nil {
		t.Error("there was no memory for it")
	}
}

// parseWholeResponse parses the head at the start of b, and returns its length.
func parseWholeResponse(b []byte, lim Limits) (resp Response, n int, err error) {
	br := bufio.NewReader(bytes.NewReader(b))
	if resp, err = ReadResponse(br, lim); err != nil {
		return Response{}, 0, err
	}
	rest, _ := io.ReadAll(br)
	return resp, len(b) - len(rest), nil
}
