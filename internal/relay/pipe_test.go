//go:build linux && !noepoll

package relay

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestBulkBothWays sends more than every buffer holds, at once both ways,
// through readers of different speed, and compares every byte.
func TestBulkBothWays(t *testing.T) {
	const size = 48 << 20
	w := newWorld(t, pass, generous).start()
	var both sync.WaitGroup
	transfer := func(from, to net.Conn, seed uint64) {
		sent, got := sha256.New(), sha256.New()
		both.Go(func() {
			io.CopyN(io.MultiWriter(from, sent), rand.NewChaCha8([32]byte{byte(seed)}), size)
			from.(*net.TCPConn).CloseWrite()
		})
		both.Go(func() {
			if n, err := io.CopyBuffer(got, slow{to}, make([]byte, 10_000)); n != size || err != nil {
				t.Errorf("received %d bytes, %v", n, err)
			}
		})
		t.Cleanup(func() {
			if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Error("the bytes changed on the way")
			}
		})
	}
	transfer(w.client, w.upstream, 1)
	transfer(w.upstream, w.client, 2)
	both.Wait()
	if e := w.end(t); e.Up != size || e.Down != size {
		t.Errorf("ended as %+v", e)
	}
}

// slow pauses now and then, so that the sender's buffers fill up.
type slow struct{ r io.Reader }

func (s slow) Read(b []byte) (int, error) {
	if rand.IntN(500) == 0 {
		time.Sleep(time.Millisecond)
	}
	return s.r.Read(b)
}

func TestIdleTunnelsHoldNoPipe(t *testing.T) {
	w := newWorld(t, pass, generous).start()
	go w.client.Write(make([]byte, 8<<20))
	if _, err := io.CopyN(io.Discard, w.upstream, 8<<20); err != nil {
		t.Fatal(err)
	}
	send(t, w.upstream, "x")
	expect(t, w.client, "x")
	out := make(chan int)
	w.loop.Post(func() { out <- w.loop.pipesOut })
	if n := <-out; n != 0 {
		t.Errorf("%d pipes are still borrowed", n)
	}
}

func TestTakeLeavesTheDescriptorsOpen(t *testing.T) {
	w := newWorld(t, func([]byte) (Judgement, []byte) { return Take, nil }, generous).start()
	send(t, w.client, "x")
	nothing(t, w.client)
	fds := make(chan [2]int)
	w.loop.Post(func() { fds <- [2]int{int(w.tunnel.client.fd), int(w.tunnel.upstream.fd)} })
	for _, fd := range <-fds {
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0); errno != 0 {
			t.Errorf("descriptor %d: %v", fd, errno)
		}
		w.loop.Post(func() { w.loop.CloseFD(fd) })
	}
	select {
	case e := <-w.keeper.ended:
		t.Errorf("Ended was called: %+v", e)
	default:
	}
}

func TestTakeGivesPipesBack(t *testing.T) {
	w := newWorld(t, func([]byte) (Judgement, []byte) { return Take, nil }, generous)
	// A client that does not read and has room for little, and an upstream
	// that has more than a whole buffer ready: the first read borrows a pipe.
	w.client.(*net.TCPConn).SetReadBuffer(4 << 10)
	syscall.SetsockoptInt(int(w.tunnel.client.fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 4<<10)
	go w.upstream.Write(make([]byte, 32<<20))
	for deadline := time.Now().Add(30 * time.Second); queued(t, int(w.tunnel.upstream.fd)) < bufferSize; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the upstream's bytes did not arrive")
		}
	}
	w.start()
	out := make(chan int)
	borrowed := func() int {
		w.loop.Post(func() { out <- w.loop.pipesOut })
		return <-out
	}
	for deadline := time.Now().Add(30 * time.Second); borrowed() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no pipe was borrowed")
		}
	}
	send(t, w.client, "x")
	for deadline := time.Now().Add(30 * time.Second); borrowed() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the pipe was not given back")
		}
	}
	done := make(chan struct{})
	w.loop.Post(func() {
		w.loop.CloseFD(int(w.tunnel.client.fd))
		w.loop.CloseFD(int(w.tunnel.upstream.fd))
		close(done)
	})
	<-done
}

// queued counts the bytes that wait to be read from fd.
func queued(t *testing.T, fd int) int {
	t.Helper()
	var n int32
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCINQ, uintptr(unsafe.Pointer(&n))); errno != 0 {
		t.Fatal(errno)
	}
	return int(n)
}

// TestAPipeWithBytesServesNobodyElse gives one back that holds a byte of a tunnel.
func TestAPipeWithBytesServesNobodyElse(t *testing.T) {
	loop, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer loop.release()
	p := loop.borrow()
	if _, err := syscall.Write(p.w, []byte("x")); err != nil {
		t.Fatal(err)
	}
	p.held = 1
	loop.giveBack(p)
	if len(loop.pipes) != 0 || !closed(p.r) || !closed(p.w) {
		t.Error("a pipe that holds bytes is kept")
	}
}

// TestPipesAreBounded has more tunnels busy than there are pipes for.
func TestPipesAreBounded(t *testing.T) {
	loop, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	var all []*pipe
	for p := loop.borrow(); p != nil && len(all) <= pipesMost; p = loop.borrow() {
		all = append(all, p)
	}
	if len(all) != pipesMost {
		t.Errorf("%d pipes are lent, want %d", len(all), pipesMost)
	}
	for _, p := range all {
		loop.giveBack(p)
	}
	kept := loop.pipes
	if len(kept) != pipesIdle || loop.pipesOut != 0 {
		t.Errorf("%d pipes are kept, %d are out", len(kept), loop.pipesOut)
	}
	loop.release()
	for _, p := range kept {
		if !closed(p.r) || !closed(p.w) {
			t.Fatal("a pipe is left of a loop that is over")
		}
	}
}

func closed(fd int) bool {
	_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
	return errno == syscall.EBADF
}
