package sandbox

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDatagramsThatAreShutEnd has who handed sockets for datagrams in make them ones that
// block, and shut them: then they are read from at once, and nothing is there.
func TestDatagramsThatAreShutEnd(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := c.File() // which has it block
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	d := &Datagrams{conn: c}
	ended := make(chan error, 1)
	go func() { _, err := d.Next(); ended <- err }()
	_ = unix.SetNonblock(int(theirs.Fd()), false)
	_ = unix.Shutdown(int(theirs.Fd()), unix.SHUT_RDWR)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a datagram from nobody")
		}
	case <-time.After(30 * time.Second):
		t.Error("it is read from for ever")
	}
	d.Close()
}
