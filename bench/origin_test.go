//go:build linux

package main

import (
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAFlightIsCompleteAtItsLastByteOnly(t *testing.T) {
	hello, err := recordHello(originName)
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range [][]byte{hello, []byte("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")} {
		for cut := range len(first) {
			var f flight
			if n, done := f.take(first[:cut]); n != cut || done {
				t.Fatalf("%d of %d bytes: took %d, complete %v", cut, len(first), n, done)
			}
			rest := append(first[cut:len(first):len(first)], "more"...)
			if n, done := f.take(rest); n != len(first)-cut || !done || f.sum != sum(first) {
				t.Fatalf("rest after %d bytes: took %d, complete %v, sum %x", cut, n, done, f.sum)
			}
		}
	}
}

func startTestLoops(t *testing.T, mode originMode) net.Conn {
	t.Helper()
	var port int
	if err := startLoops(&port, mode, make(chan error, 64)); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

func expect(t *testing.T, c net.Conn, send, want string) {
	t.Helper()
	if _, err := io.WriteString(c, send); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("%.40q was answered with %q, %v; want %q", send, got, err, want)
	}
}

func TestTheFlightOriginSumsThenEchoes(t *testing.T) {
	c := startTestLoops(t, flightMode)
	hello, err := recordHello(originName)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, c, string(hello)+"early", string([]byte{sum(hello)})+"early")
	expect(t, c, "p", "p")
	expect(t, c, "GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n")
}

func TestTheHTTPOriginAnswersEveryRequest(t *testing.T) {
	c := startTestLoops(t, httpMode)
	const request = "GET / HTTP/1.1\r\nHost: bench.test\r\n\r\n"
	expect(t, c, request, page)
	expect(t, c, request+request+request[:9], page+page)
	expect(t, c, request[9:], page)
}

func TestThePageIsFramed(t *testing.T) {
	r, done, err := parseReply([]byte(page))
	if err != nil || !done || string(r.body) != pageBody || r.length != len(pageBody) || r.closes {
		t.Errorf("%+v, %v, %v", r, done, err)
	}
}

func TestAnOriginEndsWhenItsInputDoes(t *testing.T) {
	var where strings.Builder
	if err := serveOrigins(strings.NewReader(""), &where); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(where.String(), `{"flight":`) {
		t.Errorf("it says %q", where.String())
	}
}
