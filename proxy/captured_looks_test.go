package proxy

import (
	"net"
	"syscall"
	"testing"

	"github.com/egressd/egressd/internal/relay"
)

// TestFewBytesMoreAreNoReasonToLookAgain has a client send its first bytes in small pieces. Each look copies all of
// them.
func TestFewBytesMoreAreNoReasonToLookAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fd, err := relay.Duplicate(c)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	loop, err := relay.NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { loop.Close(); loop.Run() }()
	k := &capture{conn: newConn(loop, &setup{fd: fd})}
	looks := 0
	const size = 16 << 10
	for sent := range size { // which is what lookAt does, but for what it makes of them
		if _, err := client.Write([]byte{22}); err != nil {
			t.Fatal(err)
		}
		if !k.postpones() {
			looks++
			k.looks, k.looked = looks, sent+1
		}
	}
	if looks > 100 || k.again == nil {
		t.Errorf("%d looks at %d bytes; a last look comes: %v", looks, size, k.again != nil)
	}
}
