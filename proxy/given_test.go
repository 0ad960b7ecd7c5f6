//go:build linux

package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/sandbox/foreign"
	"golang.org/x/sys/unix"
)

// TestAGivenListenerThatBlocksIsNobodyElsesTrouble has who gave a listener make its socket
// block, while another sandbox goes on.
func TestAGivenListenerThatBlocksIsNobodyElsesTrouble(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	up := newOrigin(t, func(c net.Conn) { io.Copy(c, c) })
	to := w.named(t, "allowed.test", up.port)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := duplicate(l)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(theirs)
	served := make(chan error, 1)
	go func() {
		served <- w.ServeTransparent(foreign.Listener{Listener: l}, "given", func(int) (netip.AddrPort, error) { return to, nil })
	}()
	dial := func() *testClient {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		return &testClient{c, bufio.NewReader(c), t}
	}
	dial().send("one\n").expect("one\n")
	if err := syscall.SetNonblock(theirs, false); err != nil {
		t.Fatal(err)
	}
	dial().send("two\n").expect("two\n")
	for range 3 { // loops that waited at the socket would not come round
		w.captured(t, to).send("other\n").expect("other\n")
	}
	dial().send("three\n").expect("three\n")
	if err := syscall.Shutdown(theirs, syscall.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-served:
		if err == nil || errors.Is(err, net.ErrClosed) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it is served still")
	}
	w.captured(t, to).send("other\n").expect("other\n")
}

// TestWhatAListenerWasGivenWithIsNotPassedOn has who gave a listener set what its connections
// begin with: that close(2) waits, that what is looked at is not what is read, that what
// is sent comes back.
func TestWhatAListenerWasGivenWithIsNotPassedOn(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	up := newOrigin(t, func(c net.Conn) { io.Copy(c, c) })
	to := w.named(t, "allowed.test", up.port)
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // which has fewer options; listeners take only plain TCP
	l, err := plain.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := duplicate(l)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(theirs)
	options := map[int][2]int{unix.SO_PEEK_OFF: {3, -1}, unix.SO_TIMESTAMPING: {unix.SOF_TIMESTAMPING_TX_SOFTWARE | unix.SOF_TIMESTAMPING_SOFTWARE, 0}, unix.SO_RCVLOWAT: {1000, 1}, unix.SO_OOBINLINE: {1, 0}}
	err = syscall.SetsockoptLinger(theirs, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 60})
	for o, values := range options {
		if failed := syscall.SetsockoptInt(theirs, syscall.SOL_SOCKET, o, values[0]); o != unix.SO_PEEK_OFF { // which TCP has since Linux 6.9
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	lingers := make(chan int32, 1)
	go w.ServeTransparent(foreign.Listener{Listener: l}, "given", func(fd int) (netip.AddrPort, error) {
		for o, values := range options {
			if got, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, o); err == nil && got != values[1] {
				t.Errorf("option %d is %d, not %d", o, got, values[1])
			}
		}
		linger, err := unix.GetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER)
		if err != nil {
			t.Error(err)
		}
		lingers <- linger.Onoff
		return to, nil
	})
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if <-lingers != 0 {
		t.Error("close(2) waits for the client")
	}
	(&testClient{c, bufio.NewReader(c), t}).send("one\n").expect("one\n")
}

// duplicate returns a descriptor of its own for a listener.
func duplicate(l net.Listener) (fd int, err error) {
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		return -1, err
	}
	failed := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(failed, err)
}
