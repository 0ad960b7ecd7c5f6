package proxy

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// A presence is a context that ends when the client has left, for who waits where nobody reads
// from it. It looks while somebody waits for its end, and when it is asked for its error. A
// client that sends no more (FIN) has left: one that still reads cannot be told from it.
type presence struct {
	context.Context
	raw  net.Conn  // the client's connection
	once sync.Once // is over once somebody has waited, or may not any more
	gone chan struct{}
	over chan struct{} // nil where nobody has waited, as for most requests
}

// lookEvery is how often it looks.
const lookEvery = 250 * time.Millisecond

// present returns the client's presence. release has to be called.
func (h *hosted) present() *presence {
	return &presence{Context: context.Background(), raw: h.raw}
}

func (p *presence) release() {
	p.once.Do(func() {})
	if p.over != nil {
		close(p.over)
	}
}

// Done implements [context.Context].
func (p *presence) Done() <-chan struct{} {
	p.once.Do(func() {
		p.gone, p.over = make(chan struct{}), make(chan struct{})
		go p.look()
	})
	return p.gone
}

// Err implements [context.Context]. It looks anew.
func (p *presence) Err() error {
	if hasLeft(p.raw) {
		return context.Canceled
	}
	return nil
}

func (p *presence) look() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.over:
			return
		}
		if hasLeft(p.raw) {
			close(p.gone)
			return
		}
	}
}

// hasLeft reports whether a peer has ended its connection, whatever it sent before.
func hasLeft(c net.Conn) (left bool) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true // closed here
	}
	err = raw.Control(func(fd uintptr) {
		const rdhup = 0x2000 // POLLRDHUP
		p := struct {
			fd              int32
			events, happens int16
		}{fd: int32(fd), events: rdhup}
		var now syscall.Timespec
		n, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		left = errno == 0 && n > 0 // POLLHUP and POLLERR are told unasked
	})
	return left || err != nil
}
