package proxy

import (
	"syscall"
	"testing"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
)

// TestAHeadInPiecesIsReadInTurns sends each byte of a head with a descriptor, so that each read returns one byte.
func TestAHeadInPiecesIsReadInTurns(t *testing.T) {
	w := newWorld(t, openPolicy, nil)
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[0])
	for _, piece := range []byte("GET http://allowed.test/ HTTP/1.1\r\n") {
		if err := syscall.Sendmsg(pair[0], []byte{piece}, syscall.UnixRights(0), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	w.start.Do(w.prepare)
	left := make(chan bool)
	loop := w.loops[0]
	loop.Post(func() {
		c := newConn(loop, &setup{fd: pair[1], peer: sandbox.Peer{Listener: w.socket}})
		if !c.admit(w.Server, w.Sandboxes.Holder(&c.peer)) {
			t.Error("no place")
		}
		c.begin()
		c.Ready(relay.CanRead)
		left <- relay.Unread(pair[1])
	})
	if !<-left {
		t.Error("the whole head was read in one turn")
	}
	syscall.Shutdown(pair[0], syscall.SHUT_WR)
	w.recorded(t, func(r record.Record) bool { return r.Kind == record.KindRefused }) // it has read to the end
}
