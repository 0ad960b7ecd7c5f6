package relay

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

// full returns the descriptor of a socket in which n bytes wait, more than a stream may move
// before it is busy.
func full(t *testing.T) (fd, n int) {
	t.Helper()
	fds, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fds[0]) })
	for block := make([]byte, 16<<10); ; {
		sent, err := syscall.Write(fds[0], block)
		if err == syscall.EAGAIN {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n += sent
	}
	if n < 2*eventShare {
		t.Fatalf("%d bytes wait in a socket, where more than %d are to", n, 2*eventShare)
	}
	return fds[1], n
}

// drained returns the descriptor of a socket from which all is read.
func drained(t *testing.T) int {
	t.Helper()
	fds, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "drained")
	far, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(io.Discard, far)
	}()
	t.Cleanup(func() { far.Close(); <-done })
	return fds[1]
}

// TestBusyTunnelsTakeTurns has many tunnels with much to move. None moves more than its share
// where it becomes ready, and all together no more than theirs before others are looked
// after, those first that wait for longest.
func TestBusyTunnelsTakeTurns(t *testing.T) {
	loop, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	var all []*Tunnel
	waits := 0
	for range 60 {
		client, n := full(t)
		tunnel, k := new(Tunnel), &keeper{judge: pass, ended: make(chan End, 1)}
		loop.Carry(tunnel, client, drained(t), nil, k, &generous)
		tunnel.judged, tunnel.started = true, true
		all, waits = append(all, tunnel), waits+n
	}
	if waits < 2*busyTurn {
		t.Fatalf("%d bytes wait, where more than %d are to", waits, 2*busyTurn)
	}
	loop.share = eventShare
	for i, tunnel := range all {
		(*clientSide)(tunnel).Ready(CanRead)
		(*clientSide)(tunnel).Ready(CanRead) // which changes nothing for one that is busy
		if tunnel.up.count > eventShare || !tunnel.busy {
			t.Errorf("tunnel %d has moved %d bytes at once", i, tunnel.up.count)
		}
	}
	loop.runBusy()
	if most := busyTurn + busyShare; loop.moved > most {
		t.Errorf("%d bytes were moved in a round, want %d at most", loop.moved, most)
	}
	first, last := all[0], all[len(all)-1]
	if first.up.count <= eventShare || last.up.count > eventShare || !last.busy {
		t.Errorf("the first tunnel has moved %d bytes, and the last %d", first.up.count, last.up.count)
	}
	for len(loop.busy) > 0 {
		loop.runBusy()
	}
	if loop.had != 0 || last.up.count <= eventShare {
		t.Errorf("the last tunnel has moved %d bytes", last.up.count)
	}
	loop.cutAll()
	loop.release()
}
