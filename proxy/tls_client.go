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
	"github.com/egressd/egressd/proxy/forward"
	"github.com/egressd/egressd/sandbox"
)

// A tlsClient is one connection of a TLS listener. A goroutine decrypts it into one end of a socket pair. An
// event loop serves the other end like any plain connection. The buffer of the pair makes a fast side wait for
// a slow one.
type tlsClient struct {
	server    *Server
	raw       net.Conn       // the client
	transport *handshakeConn // raw, as TLS reads it
	tls       *tls.Conn
	holder    *connHolder   // that it is counted with, outside
	inner     *net.UnixConn // its end of the pair
	loop      *relay.Loop
	innerFD   int // a descriptor for inner, on the loop
	ending    atomic.Uint32
}

// How the proxy ended its side.
const (
	orderly    = iota // the client is told that this is the end (RFC 8446 §6.1)
	unfinished        // it is not, since more was to come
	wasCut            // and what is on its way does not matter
)

// noteEnding notes that the connection does not end in an orderly way. A nil tlsClient
// is none.
func (f *tlsClient) noteEnding(how uint32) {
	if f != nil {
		f.ending.Store(max(f.ending.Load(), how))
	}
}

// wrapInner returns the served end as a connection whose abort the tlsClient notices.
func (f *tlsClient) wrapInner(c net.Conn) net.Conn {
	if unix, ok := c.(*net.UnixConn); ok && f != nil {
		return innerConn{unix, f}
	}
	return c
}

// An innerConn is the served end of a tlsClient, for a goroutine.
type innerConn struct {
	*net.UnixConn
	client *tlsClient
}

// SetLinger is what a connection is broken off with, see abort.
func (c innerConn) SetLinger(int) error {
	c.client.noteEnding(wasCut)
	return nil
}

// A tlsTunnelKeeper tells a tlsClient how its tunnel ended.
type tlsTunnelKeeper struct {
	*conn
	client *tlsClient
}

// Ended implements [relay.Keeper].
func (k *tlsTunnelKeeper) Ended(e relay.End) {
	switch e.Why {
	case relay.WasCut, relay.OverBudget:
		k.client.noteEnding(wasCut)
	case relay.Broken, relay.IdleTooLong, relay.TooOld:
		k.client.noteEnding(unfinished)
	}
	k.conn.Ended(e)
}

// joinLoop hands the inside of f to a loop, as the connection of p.
func (f *tlsClient) joinLoop(p sandbox.Peer) error {
	fds, err := relay.Pair()
	if err != nil {
		return err
	}
	if err := f.setInner(fds[0]); err != nil {
		syscall.Close(fds[1])
		return err
	}
	begin := func() {
		if f.loop.WatchEnd(f.innerFD, f) != nil { // then nobody would notice its end
			syscall.Close(fds[1])
			f.reset()
			return
		}
		c := newConn(f.loop, &setup{fd: fds[1], peer: p, tlsClient: f})
		c.serve(nil, c.admit(f.server, f.server.Sandboxes.Holder(&p)))
	}
	if !f.loop.Post(begin) {
		syscall.Close(fds[1])
		syscall.Close(f.innerFD)
		return errors.Join(ErrClosed, f.inner.Close())
	}
	return nil
}

// setInner makes fd the decrypting end of the socket pair. It closes fd even if it fails.
func (f *tlsClient) setInner(fd int) error {
	c, err := netConn(fd)
	if err != nil {
		return err
	}
	inner, ok := c.(*net.UnixConn)
	if !ok {
		return errors.Join(errors.New("a socket pair is not one of unix sockets"), c.Close())
	}
	if f.innerFD, err = relay.Duplicate(inner); err != nil {
		return errors.Join(err, inner.Close())
	}
	f.inner = inner
	return nil
}

// Ready ends what waits for the client, once the proxy has ended its side.
func (f *tlsClient) Ready(e relay.Events) {
	if !e.Broken() {
		return
	}
	if f.ending.Load() == wasCut {
		f.reset()
		return
	}
	f.stopReading(farewellTime)
}

// farewellTime is how long a client has to take what was sent to it before the
// proxy ended the connection.
const farewellTime = 30 * time.Second

// stopReading stops reading from the client, and gives it d to take what is left.
func (f *tlsClient) stopReading(d time.Duration) {
	f.raw.SetReadDeadline(time.Now())
	f.raw.SetWriteDeadline(time.Now().Add(d))
}

// reset breaks the client's connection off.
func (f *tlsClient) reset() {
	forward.Abort(f.raw)
}

// pump carries both ways until both are over, and closes everything.
func (f *tlsClient) pump() {
	var up sync.WaitGroup
	up.Go(f.pumpUp)
	f.pumpDown()
	up.Wait()
	f.inner.Close()
	forget := func() {
		f.loop.Forget(f.innerFD)
		f.loop.CloseFD(f.innerFD)
	}
	if !f.loop.Post(forget) {
		syscall.Close(f.innerFD)
	}
}

// pumpUp carries bytes from the client. A client that closes without close_notify (RFC 8446 §6.1) may have had
// more to say, so its direction is broken off and not ended.
func (f *tlsClient) pumpUp() {
	writing, reading := f.copy(f.inner, f.tls)
	switch {
	case writing != nil, errors.Is(reading, os.ErrDeadlineExceeded): // the proxy has left
	case reading != nil || f.transport.closed:
		f.noteEnding(unfinished)
		f.closeInner()
	default:
		f.inner.CloseWrite()
	}
}

// closeInner ends both directions of the inner connection. Closing it would not: there is
// another descriptor for it.
func (f *tlsClient) closeInner() {
	f.inner.CloseWrite()
	f.inner.CloseRead()
}

func (f *tlsClient) pumpDown() {
	writing, _ := f.copy(f.tls, f.inner)
	f.settleLoop()
	switch {
	case f.ending.Load() == wasCut:
		f.reset()
	case writing != nil || f.ending.Load() == unfinished:
		f.closeInner()
		f.raw.Close()
	default:
		f.tls.CloseWrite()
	}
}

// settleLoop waits until the loop has said all about an end that can be seen.
func (f *tlsClient) settleLoop() {
	said := make(chan struct{})
	if f.loop.Post(func() { close(said) }) {
		<-said
	}
}

// copy carries until r ends. writing is an error of w, reading one of r other
// than its end.
func (f *tlsClient) copy(w io.Writer, r io.Reader) (writing, reading error) {
	buf := f.server.forwarder.Buffers.Get().(*[forward.BodyBuffer]byte)
	defer f.server.forwarder.Buffers.Put(buf)
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
