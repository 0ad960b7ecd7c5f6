package relay

import (
	"io"
	"net"
	"testing"
)

// benchWorld is a started tunnel between two ordinary connections.
func benchWorld(b *testing.B) (client, upstream net.Conn) {
	b.Helper()
	loop, err := NewLoop()
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- loop.Run() }()
	b.Cleanup(func() { loop.Close(); <-done })
	client, near := tcpPair(b)
	upstream, far := tcpPair(b)
	k := &keeper{judge: pass, ended: make(chan End, 1)}
	loop.Post(func() {
		t := new(Tunnel)
		loop.Carry(t, near, far, nil, k, &generous)
		t.Start()
	})
	return client, upstream
}

func BenchmarkPing(b *testing.B) {
	client, upstream := benchWorld(b)
	go io.Copy(upstream, upstream)
	one := make([]byte, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Write(one); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(client, one); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBulk(b *testing.B) {
	client, upstream := benchWorld(b)
	go io.Copy(io.Discard, upstream)
	block := make([]byte, 1<<20)
	b.SetBytes(int64(len(block)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Write(block); err != nil {
			b.Fatal(err)
		}
	}
}
