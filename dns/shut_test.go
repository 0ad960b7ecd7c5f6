package dns

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// TestAConnectionDoesNotLinger has the program that gave the listener make close(2) wait for what
// clients do not read.
func TestAConnectionDoesNotLinger(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lingers := func(c syscall.Conn, set *unix.Linger) (is int32) {
		t.Helper()
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var failed error
		err = raw.Control(func(fd uintptr) {
			if set != nil {
				failed = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, set)
				return
			}
			var linger *unix.Linger
			if linger, failed = unix.GetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER); failed == nil {
				is = linger.Onoff
			}
		})
		if err := errors.Join(err, failed); err != nil {
			t.Fatal(err)
		}
		return is
	}
	lingers(l.(*net.TCPListener), &unix.Linger{Onoff: 1, Linger: 60})
	asks, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer asks.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Gate: newServerWorld(t, Limits{}).Gate, Placeholders: true}
	defer s.Shutdown()
	s.accepted(c, "given")
	if lingers(c.(*net.TCPConn), nil) != 0 {
		t.Error("close(2) waits for the client")
	}
}
