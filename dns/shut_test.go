package dns

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// TestASocketThatIsShutIsServedNoMore has the program that gave the socket make it one that blocks, and
// shut it: then it is read from at once, and nothing is there.
func TestASocketThatIsShutIsServedNoMore(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	s := &Server{Gate: newServerWorld(t, Limits{}).Gate, Placeholders: true}
	served := make(chan error, 1)
	go func() { served <- s.ServeUDP(c, "given") }()
	_ = syscall.SetNonblock(int(theirs.Fd()), false)
	_ = syscall.Shutdown(int(theirs.Fd()), syscall.SHUT_RDWR)
	select {
	case err := <-served:
		if err == nil {
			t.Error("it ended without a word")
		}
	case <-time.After(30 * time.Second):
		t.Error("it is served for ever")
	}
	s.Shutdown()
}
