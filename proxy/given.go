package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
)

// An OwnLoop is an event loop for the connections of one sandbox that administers its network. What such a sandbox
// adds to its packet filter (nftables) runs within send(2), recv(2) and close(2) of this process. On an OwnLoop it
// takes time from that sandbox's connections alone.
type OwnLoop struct {
	server *Server
	loop   *relay.Loop
}

// pipesOfOwn keeps own loops from using up the pipes of egressd's user (pipe(7)).
const pipesOfOwn = 2

// NewOwnLoop returns an event loop that nobody else uses. It takes a thread from its first connection on.
func (s *Server) NewOwnLoop() (*OwnLoop, error) {
	s.start.Do(s.prepare)
	if s.startErr != nil {
		return nil, s.startErr
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.freeLoops); n > 0 {
		loop := s.freeLoops[n-1]
		s.freeLoops = s.freeLoops[:n-1]
		return &OwnLoop{s, loop}, nil
	}
	return s.newOwnLoopLocked(pipesOfOwn)
}

// newOwnLoop returns one more event loop, unless the server stops.
func (s *Server) newOwnLoop(pipes int) (*OwnLoop, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newOwnLoopLocked(pipes)
}

// newOwnLoopLocked is newOwnLoop where s.mu is held.
func (s *Server) newOwnLoopLocked(pipes int) (*OwnLoop, error) {
	if s.stopping {
		return nil, ErrClosed
	}
	loop, err := relay.NewLoop()
	if err != nil {
		return nil, fmt.Errorf("event loop: %w", err)
	}
	loop.Pipes = pipes
	s.otherLoops = append(s.otherLoops, loop)
	s.running.Go(func() { loop.Run() })
	return &OwnLoop{s, loop}, nil
}

// Serve is [Server.ServeGiven] with this loop.
func (o *OwnLoop) Serve(l net.Listener, name string, how Original) error {
	return o.server.serveGiven([]*relay.Loop{o.loop}, l, wayIn{name: name, original: how})
}

// Release gives the loop to the next sandbox that needs one, after the last Serve. Connections that are still open
// stay on it.
func (o *OwnLoop) Release() {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	o.server.freeLoops = append(o.server.freeLoops, o.loop)
}

// ServeGiven is Serve, or ServeTransparent if how is set, for a listener that another process made, and for a
// [foreign.Screen]. That process may still have the socket and change it at any time, so no event loop accepts from
// it: the caller's goroutine does. ServeGiven returns when l is closed, after it has begun every connection that had
// arrived.
func (s *Server) ServeGiven(l net.Listener, name string, how Original) error {
	s.start.Do(s.prepare)
	if s.startErr != nil {
		l.Close()
		return s.startErr
	}
	return s.serveGiven(s.loops, l, wayIn{name: name, original: how})
}

func (s *Server) serveGiven(loops []*relay.Loop, l net.Listener, by wayIn) error {
	defer l.Close()
	if !s.registerAccepting(l) {
		return ErrClosed
	}
	defer s.forgetAccepting(l)
	given := make([]*loopListener, len(loops))
	for i, loop := range loops {
		given[i] = &loopListener{server: s, wayIn: by, at: boundTo(l), fd: -1, loop: loop}
	}
	defer settleGiven(loops, given)
	waits := false // something, for a descriptor
	for next := 0; ; {
		c, err := l.Accept()
		switch {
		case err == nil:
			waits = false
			s.acceptGiven(given[next%len(given)], c)
			next++
		case errors.Is(err, net.ErrClosed):
			if waits && by.original != nil {
				given[0].refuseUnseen(-1)
			}
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

// acceptGiven hands a connection to its loop as a fresh descriptor, without the options that the owner of the
// listener has set.
func (s *Server) acceptGiven(in *loopListener, c net.Conn) {
	defer c.Close()
	peer := sandbox.Peer{Listener: in.name}
	switch c := c.(type) {
	case *net.TCPConn:
		at, ok := c.RemoteAddr().(*net.TCPAddr)
		if !ok || foreign.Plain(c) != nil {
			return
		}
		peer.Addr = netip.AddrPortFrom(at.AddrPort().Addr().Unmap(), at.AddrPort().Port())
	case *foreign.Conn:
		if peer.UID, peer.HasUID = c.Client.UID, c.Client.HasUID; peer.HasUID { // else it is nobody's
			peer.Process = sandbox.ProcessOf(c.Client.PID, c.Client.UID)
		}
	default:
		return
	}
	fd, err := relay.Duplicate(c)
	if err != nil {
		in.refuseOne(peer, "egressd had no descriptor for the connection: "+err.Error())
		return
	}
	boundUnsent(fd)
	in.handOver(fd, peer, s.Sandboxes.Holder(&peer))
}

func (s *Server) forgetAccepting(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepting = slices.DeleteFunc(s.accepting, func(other net.Listener) bool { return other == l })
}

// settleGiven waits until it is known which programs have what was accepted.
func settleGiven(loops []*relay.Loop, given []*loopListener) {
	settle(loops)
	for _, in := range given {
		in.lookups.Wait()
	}
	settle(loops)
}
