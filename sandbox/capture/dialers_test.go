package capture

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// ownDialers are n of each family, for the network that the test is in.
func ownDialers(t *testing.T, n int) *Dialers {
	t.Helper()
	d := new(Dialers)
	for range n {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			fd, err := (&jailinit.Socket{Kind: jailinit.Dial4, Family: family, Sort: unix.SOCK_STREAM, Local: true}).Open()
			if err != nil {
				t.Fatal(err)
			}
			d.add(family, fd)
		}
	}
	t.Cleanup(d.Close)
	return d
}

// inside listens as a server in a jail.
func inside(t *testing.T, at string) (*net.TCPListener, uint16) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener), l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// reached returns both ends of a new connection.
func reached(t *testing.T, d *Dialers, l *net.TCPListener, port uint16) (*InsideConn, *net.TCPConn) {
	t.Helper()
	near, err := d.Dial(port, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{near, far} {
		c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

func reads(t *testing.T, c io.Reader, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v; want %q", b, err, want)
	}
}

// TestDialersAreUsedOverAndOver makes more connections than there are sockets, each
// ended in another way.
func TestDialersAreUsedOverAndOver(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		d := ownDialers(t, 1)
		l, port := inside(t, at)
		for i := range 12 {
			near, far := reached(t, d, l, port)
			near.Write([]byte("question"))
			reads(t, far, "question")
			far.Write([]byte("answer"))
			reads(t, near, "answer")
			switch i % 4 {
			case 0: // the server ends it first
				far.Close()
				reads(t, near, "")
			case 1: // both do, in order
				near.CloseWrite()
				if b, err := io.ReadAll(far); err != nil || len(b) != 0 {
					t.Fatalf("%q, %v", b, err)
				}
				far.Close()
				if b, err := io.ReadAll(near); err != nil || len(b) != 0 {
					t.Fatalf("%q, %v", b, err)
				}
			case 2: // the server breaks it off
				far.SetLinger(0)
				far.Close()
			}
			near.Close()
			near.Close() // the second time does nothing
			if i%4 == 3 {
				if _, err := far.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the server of a connection that was given up reads %v", err)
				}
			}
		}
	}
}

func TestDialersAreBounded(t *testing.T) {
	d := ownDialers(t, 1)
	l, port := inside(t, "127.0.0.1:0")
	near, _ := reached(t, d, l, port)
	if _, err := d.Dial(port, time.Second); !errors.Is(err, errDialersBusy) {
		t.Errorf("one more: %v", err)
	}
	near.Close()
	reached(t, d, l, port)
}

func TestNobodyListens(t *testing.T) {
	d := ownDialers(t, 1)
	l, port := inside(t, "127.0.0.1:0")
	l.Close()
	for range 3 {
		if _, err := d.Dial(port, 10*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v", err)
		}
	}
	again, port := inside(t, "127.0.0.1:0")
	reached(t, d, again, port)
}

// TestTheLastBytesAreDelivered ends a connection whose server is slow to read.
func TestTheLastBytesAreDelivered(t *testing.T) {
	d := ownDialers(t, 1)
	l, port := inside(t, "127.0.0.1:0")
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	if err != nil {
		t.Fatal(err)
	}
	near, far := reached(t, d, l, port)
	far.CloseWrite()
	if b, err := io.ReadAll(near); err != nil || len(b) != 0 {
		t.Fatalf("%q, %v", b, err)
	}
	const size = 128 << 10
	near.SetWriteBuffer(4 * size)
	if _, err := near.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	near.CloseWrite()
	near.Close()
	if _, err := d.Dial(port, time.Second); !errors.Is(err, errDialersBusy) {
		t.Errorf("the socket is used before it has delivered: %v", err)
	}
	if b, err := io.ReadAll(far); err != nil || len(b) != size {
		t.Errorf("read %d bytes, %v", len(b), err)
	}
}

func TestClosedDialersDoNotConnect(t *testing.T) {
	d := ownDialers(t, 2)
	l, port := inside(t, "127.0.0.1:0")
	near, far := reached(t, d, l, port)
	d.Close()
	if _, err := d.Dial(port, time.Second); err == nil {
		t.Error("they still connect")
	}
	near.Write([]byte("x")) // what was open stays
	reads(t, far, "x")
	near.Close()
	if len(d.idle) != 0 {
		t.Errorf("%d are kept", len(d.idle))
	}
	if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the server reads %v", err)
	}
}
