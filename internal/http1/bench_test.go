package http1

import (
	"bufio"
	"io"
	"strings"
	"testing"
)

func benchmarkRequest(b *testing.B, head string) {
	b.ReportAllocs()
	bytes := []byte(head)
	for b.Loop() {
		req, _, err := ParseRequest(bytes, Limits{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ParseTarget(req.Method, req.Target); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCONNECT(b *testing.B) {
	benchmarkRequest(b, crlf("CONNECT api.allowed.test:443 HTTP/1.1", "Host: api.allowed.test:443",
		"User-Agent: curl/8.14.1", "Proxy-Connection: Keep-Alive", ""))
}

func BenchmarkGET(b *testing.B) {
	benchmarkRequest(b, crlf("GET http://api.allowed.test/v1/things?limit=10 HTTP/1.1", "Host: api.allowed.test",
		"User-Agent: curl/8.14.1", "Accept: */*", "Proxy-Connection: Keep-Alive", ""))
}

func BenchmarkAppendRequest(b *testing.B) {
	req, _, err := ParseRequest([]byte(crlf("GET / HTTP/1.1", "Host: a.test", "User-Agent: curl/8.14.1", "Accept: */*", "")), Limits{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var dst []byte
	for b.Loop() {
		dst = AppendRequest(dst[:0], req.Method, req.Target, req.Fields)
	}
}

func BenchmarkChunkedBody(b *testing.B) {
	wire := strings.Repeat("1000\r\n"+strings.Repeat("x", 4096)+"\r\n", 64) + "0\r\n\r\n"
	b.SetBytes(int64(len(wire)))
	in := strings.NewReader("")
	br := bufio.NewReaderSize(in, 16<<10)
	for b.Loop() {
		in.Reset(wire)
		br.Reset(in)
		if n, err := io.Copy(io.Discard, NewBodyReader(br, Framing{Kind: BodyChunked, Length: -1}, Limits{})); n != 64*4096 || err != nil {
			b.Fatal(n, err)
		}
	}
}
