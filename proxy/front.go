package proxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/sandbox"
)

// A front is one connection of a TLS listener. What is inside of its TLS goes
// through a socket pair, at whose other end it is served like any connection:
// a descriptor that holds plain bytes, whose buffer is what keeps a fast side
// waiting for a slow one.
type front struct {
	server  *Server
	raw     net.Conn // the client
	below   *heard   // raw, as TLS reads it
	tls     *tls.Conn
	outside *share        // that it is counted with, outside
	near    *net.UnixConn // its end of the pair
	loop    *relay.Loop
	watch   int // a descriptor for near, on the loop
	end     atomic.Uint32
}

// How the proxy ended its side.
const (
	orderly    = iota // the client is told that this is the end (RFC 8446 §6.1)
	unfinished        // it is not, since more was to come
	wasCut            // and what is on its way does not matter
)

// broken notes that the connection does not end in an orderly way. A nil front
// is none.
func (f *front) broken(how uint32) {
	if f != nil {
		f.end.Store(max(f.end.Load(), how))
	}
}

// behind returns the served end as a connection whose abort the front notices.
func (f *front) behind(c net.Conn) net.Conn {
	if unix, ok := c.(*net.UnixConn); ok && f != nil {
		return fronted{unix, f}
	}
	return c
}

// A fronted connection is the served end of a front, for a goroutine.
type fronted struct {
	*net.UnixConn
	front *front
}

// SetLinger is what a connection is broken off with, see abort.
func (c fronted) SetLinger(int) error {
	c.front.broken(wasCut)
	return nil
}

// A frontKeeper tells a front how its tunnel ended.
type frontKeeper struct {
	*conn
	front *front
}

// Ended implements [relay.Keeper].
func (k *frontKeeper) Ended(e relay.End) {
	switch e.Why {
	case relay.WasCut, relay.OverBudget:
		k.front.broken(wasCut)
	case relay.Broken, relay.IdleTooLong, relay.TooOld:
		k.front.broken(unfinished)
	}
	k.conn.Ended(e)
}

// keeper is who a tunnel of c belongs to.
func (c *conn) keeper() relay.Keeper {
	if c.front != nil {
		return &frontKeeper{c, c.front}
	}
	return c
}

// join hands the inside of f to a loop, as the connection of p.
func (f *front) join(p sandbox.Peer) error {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := f.hold(fds[0]); err != nil {
		syscall.Close(fds[1])
		return err
	}
	begin := func() {
		if f.loop.WatchEnd(f.watch, f) != nil { // then nobody would notice its end
			syscall.Close(fds[1])
			f.reset()
			return
		}
		f.server.take(f.loop, &opening{fd: fds[1], peer: p, front: f})
	}
	if !f.loop.Post(begin) {
		syscall.Close(fds[1])
		syscall.Close(f.watch)
		return errors.Join(ErrClosed, f.near.Close())
	}
	return nil
}

// hold makes fd, which it closes either way, the near end.
func (f *front) hold(fd int) error {
	c, err := netConn(fd)
	if err != nil {
		return err
	}
	near, ok := c.(*net.UnixConn)
	if !ok {
		return errors.Join(errors.New("a socket pair is not one of unix sockets"), c.Close())
	}
	if f.watch, err = duplicate(near); err != nil {
		return errors.Join(err, near.Close())
	}
	f.near = near
	return nil
}

// Ready ends what waits for the client, once the proxy has ended its side.
func (f *front) Ready(e relay.Events) {
	if !e.Broken() {
		return
	}
	if f.end.Load() == wasCut {
		f.reset()
		return
	}
	f.leave(farewellTime)
}

// farewellTime is how long a client has to take what was sent to it before the
// proxy ended the connection.
const farewellTime = 30 * time.Second

// leave stops reading from the client, and gives it d to take what is left.
func (f *front) leave(d time.Duration) {
	f.raw.SetReadDeadline(time.Now())
	f.raw.SetWriteDeadline(time.Now().Add(d))
}

// reset breaks the client's connection off.
func (f *front) reset() {
	abort(f.raw)
}

// pump carries both ways until both are over, and closes everything.
func (f *front) pump() {
	var up sync.WaitGroup
	up.Go(f.pumpUp)
	f.pumpDown()
	up.Wait()
	f.near.Close()
	forget := func() {
		f.loop.Forget(f.watch)
		f.loop.CloseFD(f.watch)
	}
	if !f.loop.Post(forget) {
		syscall.Close(f.watch)
	}
}

// pumpUp carries from the client. One that goes without a word (RFC 8446 §6.1)
// may have had more to say, so its side is not ended but broken.
func (f *front) pumpUp() {
	writing, reading := f.copy(f.near, f.tls)
	switch {
	case writing != nil, errors.Is(reading, os.ErrDeadlineExceeded): // the proxy has left
	case reading != nil || f.below.ended:
		f.broken(unfinished)
		f.part()
	default:
		f.near.CloseWrite()
	}
}

// part ends both halves of the near end. Closing it would not: there is
// another descriptor for it.
func (f *front) part() {
	f.near.CloseWrite()
	f.near.CloseRead()
}

// pumpDown carries to the client.
func (f *front) pumpDown() {
	writing, _ := f.copy(f.tls, f.near)
	f.settle()
	switch {
	case f.end.Load() == wasCut:
		f.reset()
	case writing != nil || f.end.Load() == unfinished:
		f.part()
		f.raw.Close()
	default:
		f.tls.CloseWrite()
	}
}

// settle waits until the loop has said all about an end that can be seen.
func (f *front) settle() {
	said := make(chan struct{})
	if f.loop.Post(func() { close(said) }) {
		<-said
	}
}

// copy carries until r ends. writing is an error of w, reading one of r other
// than its end.
func (f *front) copy(w io.Writer, r io.Reader) (writing, reading error) {
	buf := f.server.buffers.Get().(*[bodyBuffer]byte)
	defer f.server.buffers.Put(buf)
	for {
		n, err := r.Read(buf[:])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err, nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return nil, err
		}
	}
}
