package proxy

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// A presence is a context that is cancelled when the client disconnects, for goroutines that wait
// while nobody reads from the connection. It looks at the connection four times a second once
// somebody has called Done, and whenever somebody calls Err. A client that sends no more (FIN)
// counts as gone: egressd cannot tell it from a client that still reads.
type clientContext struct {
	context.Context
	raw     net.Conn // the client's connection
	looking sync.WaitGroup

	mu       sync.Mutex    // guards what follows
	done     chan struct{} // closed once the client has left; nil before somebody asks
	gone     bool          // gone is closed
	stop     chan struct{} // ends look; nil where it does not run
	released bool
}

// lookEvery is the time between two looks at the connection.
const pollEvery = 250 * time.Millisecond

// present returns the client's presence. The caller has to call release.
func (h *client) context() *clientContext {
	return &clientContext{Context: context.Background(), raw: h.raw}
}

// release ends the presence's goroutine and waits for it.
func (p *clientContext) release() {
	p.mu.Lock()
	over := p.stop
	p.released, p.stop = true, nil
	p.mu.Unlock()
	if over != nil {
		close(over)
	}
	p.looking.Wait()
}

// Done implements [context.Context].
func (p *clientContext) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = make(chan struct{})
	}
	if !p.gone && !p.released && p.stop == nil {
		over := make(chan struct{})
		p.stop = over
		p.looking.Go(func() { p.poll(over) })
	}
	return p.done
}

// Err implements [context.Context]. It looks at the connection, and closes Done before it
// returns an error.
func (p *clientContext) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone && disconnected(p.raw) {
		if p.done == nil {
			p.done = make(chan struct{})
		}
		p.gone = true
		close(p.done)
	}
	if p.gone {
		return context.Canceled
	}
	return nil
}

func (p *clientContext) poll(over <-chan struct{}) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for p.Err() == nil {
		select {
		case <-tick.C:
		case <-over:
			return
		}
	}
}

// hasLeft reports whether a peer has ended its connection, whatever it sent before.
func disconnected(c net.Conn) (left bool) {
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
