package sniff

import (
	"crypto/tls"
	"testing"
)

func BenchmarkParseHello(b *testing.B) {
	stream := capture(b, &tls.Config{ServerName: "api.allowed.test", NextProtos: []string{"h2", "http/1.1"}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseHello(stream); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseHelloAndJA4(b *testing.B) {
	stream := capture(b, &tls.Config{ServerName: "api.allowed.test", NextProtos: []string{"h2", "http/1.1"}})
	b.ReportAllocs()
	for b.Loop() {
		h, err := parseHello(stream)
		if err != nil || h.JA4() == "" {
			b.Fatal(err)
		}
	}
}

// BenchmarkAssembler is a hello of 60 KB that comes byte by byte.
func BenchmarkAssembler(b *testing.B) {
	stream := inRecords(hello{extensions: [][]byte{extension(0x1234, make([]byte, 60000))}}.message(), 1000)
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		var a Assembler
		for n := range len(stream) + 1 {
			_, _ = a.Parse(stream[:n])
		}
	}
}

func BenchmarkDetect(b *testing.B) {
	first := []byte("CONNECT api.allowed.test:443 HTTP/1.1\r\n")
	for b.Loop() {
		if Detect(first) != HTTP1 {
			b.Fatal("not HTTP/1")
		}
	}
}
