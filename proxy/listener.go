package proxy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
)

// A listener is where clients are accepted, and what they have in common.
type listener struct {
	net.Listener
	server   *Server
	name     string
	at       netip.AddrPort
	original Original            // nil where clients mean to come here
	tls      func() *TLSListener // nil where they speak in clear

	begun atomic.Int64 // captured connections, until they are decided or wait for their first bytes
}

// serve accepts until the server ends or the listener is closed.
func (in *listener) serve() error {
	s := in.server
	defer in.Close()
	s.start.Do(s.prepare)
	in.at = boundTo(in)
	in.setOptions()
	if !s.register(in) {
		return ErrClosed
	}
	defer s.unregister(in)
	waits := false // something, for a descriptor
	defer func() {
		in.refuseLeft(waits)
		in.awaitBegun()
	}()
	for {
		c, err := in.Accept()
		switch {
		case err == nil:
			waits = false
			in.take(c)
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return ErrClosed
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			waits = true
			s.forwarder.Pause(100 * time.Millisecond) // what waits in the kernel stays there
		case errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EINTR):
		default:
			return err
		}
	}
}

// take has a goroutine serve a connection, if there is a place for it.
func (in *listener) take(nc net.Conn) {
	s := in.server
	c := &conn{server: s, listener: in}
	c.came = sandbox.Peer{Listener: in.name}
	switch of := nc.(type) {
	case *net.TCPConn:
		if at, ok := of.RemoteAddr().(*net.TCPAddr); ok {
			c.came.Addr = netip.AddrPortFrom(at.AddrPort().Addr().Unmap().WithZone(""), at.AddrPort().Port())
		}
	case *net.UnixConn:
		peerOf(of, &c.came)
	case *foreign.Conn:
		if c.came.UID, c.came.HasUID = of.Client.UID, of.Client.HasUID; c.came.HasUID { // else it is nobody's
			c.came.Process = sandbox.ProcessOf(of.Client.PID, of.Client.UID)
		}
		nc = of.UnixConn
	}
	c.socket = nc
	c.Client = exchange.Client{Forwarder: &s.forwarder, Raw: nc, Conn: nc, Via: policy.ViaHTTP, Assign: c.assign}
	h := s.Sandboxes.Holder(&c.came)
	c.Peer = c.came
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	if in.original != nil {
		c.replier = capturedReplier{policy.ViaTransparent}
	}
	if in.tls != nil && !s.registerHandshake(c) {
		s.recordRefusal(c.came, policy.ViaUnknown, func() {
			s.Gate.Refuse(c.came, policy.ViaUnknown, nil, policy.TooManyFlows, "too many TLS handshakes of this address are under way")
		})
		exchange.Abort(nc)
		return
	}
	if !s.connections.Acquire(&c.admission, h.Sandbox, h, c) {
		s.handshakeDone(c)
		s.turnAway(c)
		nc.Close()
		return
	}
	if !s.begin(c) {
		s.handshakeDone(c)
		s.connections.Release(&c.admission)
		nc.Close()
		return
	}
	go c.serve()
}

// refuseLeft takes or records the captured connections that wait at a listener that has ended. Their programs may be gone.
func (in *listener) refuseLeft(waits bool) {
	if in.original == nil {
		return
	}
	tcp, ok := in.Listener.(*net.TCPListener)
	if !ok {
		if waits {
			in.refuseUnseen(-1)
		}
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	unseen := int64(0)
	raw.Control(func(fd uintptr) {
		for range cmp.Or(in.server.backlogLimit, backlogMost) {
			c, err := acceptNow(int(fd))
			if err != nil {
				break
			}
			in.take(c)
		}
		unseen = backlogOf(int(fd))
	})
	in.refuseUnseen(unseen)
}

// begunMost is how long a listener waits at its end for the next captured connection to be decided. The program may be gone
// by then, and the log has to have its decision. The listener does not wait for a person's answer.
const begunMost = time.Second

func (in *listener) awaitBegun() {
	left, since := in.begun.Load(), time.Now()
	for left > 0 && time.Since(since) < begunMost {
		time.Sleep(time.Millisecond)
		if n := in.begun.Load(); n != left {
			left, since = n, time.Now()
		}
	}
}

// backlogMost is more than wait at a listener, by net.core.somaxconn, and bounds what comes in the
// meantime.
const backlogMost = 16 << 10

// refuseUnseen records what has come to a listener that has ended and was not accepted:
// how many, which may be 0, or -1 where that is not known. A log that fails is not reported:
// nobody waits for it, and nothing has passed.
func (in *listener) refuseUnseen(n int64) {
	const why = "the listener ended before these connections were looked at: they were too many, or egressd had no descriptors left"
	who, via := sandbox.Peer{Listener: in.name}, in.via()
	switch {
	case n > 0:
		_ = in.server.Gate.RefuseUnseen(who, via, policy.TooManyFlows, n, why)
	case n < 0:
		_ = in.server.Gate.RefuseUnseen(who, via, policy.TooManyFlows, 0, why+"; how many is not known")
	}
}

// via is the way in as far as the listener tells it.
func (in *listener) via() policy.Via {
	if in.original != nil {
		return policy.ViaTransparent
	}
	return policy.ViaUnknown
}

// stop ends accept. What waits at a listener for captured connections is still taken.
func (in *listener) stop() {
	if tcp, ok := in.Listener.(*net.TCPListener); ok && in.original != nil {
		tcp.SetDeadline(time.Unix(1, 0))
		return
	}
	in.Close()
}
