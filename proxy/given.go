package proxy

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/egressd/egressd/sandbox"
)

// ServeGiven is Serve, or, where how is given, ServeTransparent, for a listener
// that is not egressd's own: who made its socket may have it still, and change it
// at any time. Nothing but the goroutine of the caller waits for it. It returns when l
// is closed, and then all that has arrived by then was at least begun.
func (s *Server) ServeGiven(l net.Listener, name string, how Original) error {
	defer l.Close()
	s.start.Do(s.prepare)
	if s.startErr != nil {
		return s.startErr
	}
	if !s.registerAccepting(l) {
		return ErrClosed
	}
	defer s.forgetAccepting(l)
	given := make([]*listener, len(s.loops))
	for i, loop := range s.loops {
		given[i] = &listener{server: s, name: name, original: how, at: boundTo(l), fd: -1, loop: loop}
	}
	defer s.settleGiven(given)
	waits := false // something, for a descriptor
	for next := 0; ; {
		c, err := l.Accept()
		switch {
		case err == nil:
			waits = false
			s.acceptGiven(given[next%len(given)], c)
			next++
		case errors.Is(err, net.ErrClosed):
			if waits && how != nil {
				given[0].refuseUnseen(-1)
			}
			return ErrClosed
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			waits = true
			s.shared.pause(100 * time.Millisecond) // what waits in the kernel stays there
		case errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EINTR):
		default:
			return err
		}
	}
}

// acceptGiven hands a connection to its loop, as a descriptor that nobody else
// has, and of which nothing is left that who gave the listener has set.
func (s *Server) acceptGiven(in *listener, c net.Conn) {
	defer c.Close()
	socket, ok := c.(*net.TCPConn)
	if !ok || sandbox.Plain(socket) != nil {
		return
	}
	at, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return
	}
	from := netip.AddrPortFrom(at.AddrPort().Addr().Unmap(), at.AddrPort().Port())
	fd, err := duplicate(c)
	if err != nil {
		in.refuseOne(from, "egressd had no descriptor for the connection: "+err.Error())
		return
	}
	if !in.loop.Post(func() { s.accepted(in, fd, from) }) {
		syscall.Close(fd)
	}
}

func (s *Server) forgetAccepting(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepting = slices.DeleteFunc(s.accepting, func(other net.Listener) bool { return other == l })
}

// settleGiven waits until it is known which programs have what was accepted.
func (s *Server) settleGiven(given []*listener) {
	s.settleLoops()
	for _, in := range given {
		for in.lookups.Load() > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	s.settleLoops()
}
