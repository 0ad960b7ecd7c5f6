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
		served <- w.ServeGiven(l, "given", func(int) (netip.AddrPort, error) { return to, nil })
	}()
	dial := func() *client {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		return &client{c, bufio.NewReader(c), t}
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
