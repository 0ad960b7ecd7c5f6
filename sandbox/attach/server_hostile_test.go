//go:build linux

package attach

import (
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/sandbox"
)

// lingering is a connection whose close(2) waits, for minutes, for what the other end does not
// read. The caller closes it while somebody else has it, too.
func lingering(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		unix.Connect(fd, &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 300}))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = unix.Sendto(fd, make([]byte, 1<<20), unix.MSG_DONTWAIT, nil)
	}
	return fd
}

// pass sends fds and closes them here.
func pass(t *testing.T, conn int, fds ...int) {
	t.Helper()
	err := unix.Sendmsg(conn, []byte("{}"), unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(fds)
	for _, fd := range slices.Compact(fds) {
		unix.Close(fd)
	}
}

func knock(t *testing.T, h *world) *Client {
	t.Helper()
	k, err := Dial(h.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// pairOf are two unix sockets, of which one is to be sent.
func pairOf(t *testing.T, sort int) (near, far int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, sort|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

// TestAServerIsNotHeldByWhatLingers sends connections whose close(2) waits, in all the ways
// in which a descriptor can come to be closed by this process.
func TestAServerIsNotHeldByWhatLingers(t *testing.T) {
	inside := func(sort int) func(*testing.T, *world) {
		return func(t *testing.T, h *world) {
			near, far := pairOf(t, sort)
			pass(t, far, lingering(t))
			unix.Close(far)
			pass(t, knock(t, h).conn, near)
		}
	}
	for says, send := range map[string]func(*testing.T, *world){
		"in a request":             func(t *testing.T, h *world) { pass(t, knock(t, h).conn, lingering(t)) },
		"in a socket's stream":     inside(unix.SOCK_STREAM),
		"in a socket's messages":   inside(unix.SOCK_SEQPACKET),
		"in a socket's datagrams":  inside(unix.SOCK_DGRAM),
		"behind an empty datagram": handsBehindEmpty,
		"behind longest request": func(t *testing.T, h *world) {
			f, far := pairOf(t, unix.SOCK_STREAM)
			defer unix.Close(far)
			fds := append(slices.Repeat([]int{f}, 200), lingering(t))
			pass(t, knock(t, h).conn, fds...)
		},
		"behind a request": func(t *testing.T, h *world) {
			k := knock(t, h)
			other, far := pairOf(t, unix.SOCK_STREAM)
			defer unix.Close(far)
			pass(t, k.conn, other)
			_ = unix.Sendmsg(k.conn, []byte("{}"), unix.UnixRights(lingering(t)), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) // it may be gone already
		},
		"in a socket at which somebody waits": func(t *testing.T, h *world) {
			path := filepath.Join(shortDir(t), "s")
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 5)); err != nil {
				t.Fatal(err)
			}
			far, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Connect(far, &unix.SockaddrUnix{Name: path}); err != nil {
				t.Fatal(err)
			}
			pass(t, far, lingering(t))
			unix.Close(far)
			pass(t, knock(t, h).conn, fd)
		},
	} {
		t.Run(says, func(t *testing.T) { notHeld(t, send) })
	}
}

func handsBehindEmpty(t *testing.T, h *world) {
	near, far := pairOf(t, unix.SOCK_DGRAM)
	if _, err := unix.Write(far, nil); err != nil { // write(2) of nothing sends nothing to a stream, but a datagram
		t.Fatal(err)
	}
	pass(t, far, lingering(t))
	unix.Close(far)
	pass(t, knock(t, h).conn, near)
}

// notHeld has something sent as often as may wait of one user, and somebody else after
// that.
func notHeld(t *testing.T, send func(*testing.T, *world)) {
	h := newWorld(t)
	for range waitingOfOne + 1 {
		send(t, h)
	}
	end := time.Now().Add(20 * time.Second)
	for a := (*Answer)(nil); a == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the next client is not seen to")
		}
		k := knock(t, h)
		_ = unix.Sendto(k.conn, []byte("{}"), unix.MSG_NOSIGNAL, nil)
		if text, err := receiveAnswer(k.conn); err == nil { // else it was turned away, as there are others
			if a, err = parseAnswer(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	closed := make(chan bool)
	go func() {
		h.server.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("the server does not close")
	}
	nobodyIsLeft(t, h.server)
}

// nobodyIsLeft says so where something that was sent is not closed by now.
func nobodyIsLeft(t *testing.T, d *Server) {
	t.Helper()
	if left := d.closing.Wait(0); left != 0 {
		t.Errorf("%d goroutines close descriptors", left)
	}
}

// TestAServerClosesWhatItDoesNotTake has clients bring what lingers who are refused:
// since as many wait as may, or the server is closed.
func TestAServerClosesWhatItDoesNotTake(t *testing.T) {
	for _, closes := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "enter.sock")
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		d := &Server{Name: "unix:" + path, Handle: func(*Conn) {}, Refused: func(sandbox.Attacher, []byte, error) {}}
		if closes {
			d.Close()
		}
		h := &world{path: path}
		for range waitingOfOne {
			knock(t, h)
		}
		for range 2 * waitingOfOne {
			pass(t, knock(t, h).conn, lingering(t))
		}
		turned := knock(t, h) // the last one
		served := make(chan error, 1)
		go func() { served <- d.Serve(l) }()
		if _, err := receiveAnswer(turned.conn); err == nil {
			t.Error("it was answered")
		} else if errors.Is(err, unix.EAGAIN) {
			t.Error("the last one is not turned away")
		}
		closed := make(chan bool)
		go func() {
			d.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(20 * time.Second):
			t.Fatal("the server does not close")
		}
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		nobodyIsLeft(t, d)
	}
}

// TestTheHostDoesNotWaitForASandboxOfItsUser has the root of a container, which has the number
// of the host's, keep a server busy.
func TestTheHostDoesNotWaitForASandboxOfItsUser(t *testing.T) {
	if !lab.AsRoot(t) {
		return
	}
	h := newWorld(t)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and it ends with the thread, which is in another network
		err := unix.Unshare(unix.CLONE_NEWNET)
		for range 100 {
			k, knocked := Dial(h.path)
			if err = errors.Join(err, knocked); err != nil {
				break
			}
			t.Cleanup(k.Close)
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if h.send(t, "{}") == nil {
		t.Error("it is turned away")
	}
}
