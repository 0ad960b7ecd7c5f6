package proxy

import (
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/internal/relay"
)

// A listener that stays open in Go wakes a thread of the runtime for each connection.
func TestOnlyTheLoopsWaitAtAListener(t *testing.T) {
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait) // behind the server's end
	w := newWorld(t, openPolicy, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving.Go(func() { w.Serve(l, "here") })
	w.addr = l.Addr().String()
	for range 2 {
		answer, _ := w.dial(t).send("CONNECT nowhere.test:443 HTTP/1.1\r\nHost: nowhere.test:443\r\n\r\n").response(http.MethodGet)
		if answer.StatusCode != http.StatusForbidden {
			t.Errorf("status %d", answer.StatusCode)
		}
		if err := l.(*net.TCPListener).SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("it is open: %v", err)
		}
	}
}

func TestWhatIsAcceptedSendsAtOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at, err := relay.Duplicate(l)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(at)
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fd, from, err := accept(at) // which is there: the client is connected
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if on, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY); err != nil || on == 0 {
		t.Errorf("TCP_NODELAY of a client is %d, error %v", on, err)
	}
	const notSentLowat = 25 // TCP_NOTSENT_LOWAT
	if n, err := syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, notSentLowat); err != nil || n != unsentMost {
		t.Errorf("the kernel queues %d bytes for a client that does not read, want %d; error %v", n, unsentMost, err)
	}
	if from.String() != c.LocalAddr().String() {
		t.Errorf("the client is %v, not %v", from, c.LocalAddr())
	}
}
