package http1

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Pieces that random messages are made of: good ones, and of each kind of
// nonsense one. Random bytes alone seldom get past the first line.
var (
	methodPieces  = []string{"GET", "POST", "CONNECT", "OPTIONS", "get", "HEAD", "X-Y", "PRI", "G(T"}
	targetPieces  = []string{"/", "/a?b=c", "/%41%2f", "/a;b", "/a//b?", "//a/", "*", "a.test:443", "[::1]:80", "http://a.test", "http://A.test:80/x?y", "HTTP://[::1]/%C3", "http://a@b/", "/a|b\"<>^`{}", "/a?%zz", "/\\x", "/a:b@c", "http://1.2.3.4?q"}
	versionPieces = []string{"HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/1.2"}
	fieldPieces   = []string{
		"Content-Length: 3", "Content-Length:3 ", "Content-Length: 0", "Content-Length: 3, 3", "content-length: 03", "Transfer-Encoding: chunked",
		"Transfer-Encoding:\tCHUNKED\t", "Transfer-Encoding: gzip", "Connection: close", "Connection: keep-alive, x-a", "X-A: 1", "x-a: 2",
		"X-Empty:", "X-High: \xff\x80", "Host: b.test", "X-Long: " + "y", "Expect: 100-continue", "Upgrade: h2c", "Cookie: a=b", "Cookie: c=d", " folded", "X : y",
		"Pragma: no-cache", "Accept: a, b", "X-Comma: ,,", "X-Colon: :", "!#$%&'*+-.^_`|~: t", "Authorization: Basic eDp5", "Range: bytes=0-1",
	}
	endPieces  = []string{"\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n"}
	bodyPieces = []string{"abc", "abcGET / HTTP/1.1\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "3;x=\"y\"\r\nabc\r\n00\r\nX-T: 1\r\nHost: z\r\n\r\nmore", "3\nabc\r\n0\r\n\r\n", ""}
)

func pick(r *rand.Rand, pieces []string) string { return pieces[r.IntN(len(pieces))] }

func randomMessage(r *rand.Rand, first string) []byte {
	var s strings.Builder
	s.WriteString(first + pick(r, endPieces))
	for range r.IntN(4) {
		s.WriteString(pick(r, fieldPieces) + pick(r, endPieces))
	}
	s.WriteString(pick(r, endPieces) + pick(r, bodyPieces))
	return []byte(s.String())
}

// TestRandomRequests holds random requests to what FuzzRequestHead says.
func TestRandomRequests(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	accepted := 0
	for range 30000 {
		line := pick(r, methodPieces) + " " + pick(r, targetPieces) + " " + pick(r, versionPieces)
		if r.IntN(8) > 0 {
			line += "\r\nHost: a.test"
		}
		b := randomMessage(r, line)
		req, n, err := ParseRequest(b, Limits{})
		if err != nil {
			continue
		}
		accepted++
		again, _, err := ParseRequest(AppendRequest(nil, req.Method, req.Target, req.Fields), Limits{})
		if again.Minor = req.Minor; req.Minor == 1 && (err != nil || !cmp.Equal(req, again)) {
			t.Fatalf("%q written and parsed again: %v", b, err)
		}
		compareRequest(t, &req, b, n)
	}
	if accepted < 3000 {
		t.Errorf("only %d requests were accepted: this shows nothing", accepted)
	}
}

// TestRandomResponses holds random responses to what FuzzResponseHead says.
func TestRandomResponses(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	statuses := []string{" 200 OK", " 200", " 204 x", " 304 ", " 404 Not Found", " 20x", " 101 Switching", "  200 OK"}
	accepted := 0
	for range 30000 {
		b := randomMessage(r, pick(r, versionPieces)+pick(r, statuses))
		resp, n, err := parseWholeResponse(b, Limits{})
		if err != nil {
			continue
		}
		accepted++
		compareResponse(t, &resp, b, n)
	}
	if accepted < 3000 {
		t.Errorf("only %d responses were accepted: this shows nothing", accepted)
	}
}

// TestRandomCuts: a message may come in any pieces; the verdict is the same,
// and no earlier than the bytes that cause it.
func TestRandomCuts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		b := randomMessage(r, "GET / HTTP/1.1\r\nHost: a.test")
		_, whole, wholeErr := ParseRequest(b, Limits{})
		var s Scanner
		for n := 0; ; n = min(n+1+r.IntN(9), len(b)) {
			end, err := s.Scan(b[:n], Limits{})
			if errors.Is(err, ErrShort) && n < len(b) {
				continue
			}
			if err == nil && wholeErr == nil && end != whole {
				t.Fatalf("%q ends at %d or %d", b, end, whole)
			}
			if err != nil && wholeErr == nil || errors.Is(err, ErrShort) != errors.Is(wholeErr, ErrShort) {
				t.Fatalf("%q: %v in pieces, %v at once", b, err, wholeErr)
			}
			break
		}
	}
}

// TestScannerIsLinear: a head of 64 KiB that comes byte by byte is searched
// once, even where it is one line.
func TestScannerIsLinear(t *testing.T) {
	head := append(bytes.Repeat([]byte("x"), 60000), "\r\n\r\n"...)
	var s Scanner
	for n := range len(head) {
		if _, err := s.Scan(head[:n], Limits{}); !errors.Is(err, ErrShort) || s.seen != n {
			t.Fatalf("%d bytes: searched up to %d, %v", n, s.seen, err)
		}
	}
	if n, err := s.Scan(head, Limits{}); n != len(head) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
