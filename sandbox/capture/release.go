package capture

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/sandbox/foreign"
)

// drainFor is how long Drain waits. What has come is taken within microseconds.
const drainFor = 200 * time.Millisecond

// Drain waits until the connections that have arrived are accepted, by those who do
// so.
func (s *Sockets) Drain() {
	until := time.Now().Add(drainFor)
	for _, fd := range s.held {
		for foreign.Listening(fd) && !drained(fd) && time.Now().Before(until) {
			time.Sleep(time.Millisecond)
		}
	}
}

// Release has whoever waits at a socket that came by a door wait no longer, until
// done is called: others may have made it one that blocks, so that closing it is not
// enough.
func (s *Sockets) Release() (done func()) {
	over := make(chan struct{})
	var breaking sync.WaitGroup
	breaking.Go(func() {
		for {
			for _, fd := range s.held {
				_ = unix.Shutdown(fd, unix.SHUT_RDWR)
			}
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	return sync.OnceFunc(func() {
		close(over)
		breaking.Wait()
		for _, fd := range s.held {
			foreign.Discard(fd)
		}
		s.held = nil
	})
}

// Close closes the sockets, and leaves it to the caller to close the programs and the
// dialers.
func (s *Sockets) Close() {
	for _, l := range s.TCP {
		l.Close()
	}
	for _, l := range s.DNSStreams {
		l.Close()
	}
	for _, c := range s.DNS {
		c.Close()
	}
	for _, d := range s.UDP {
		d.Close()
	}
	if s.Proxy != nil {
		s.Proxy.Close()
	}
}

// Discard closes all of what came by a door and nobody waits at yet.
func (s *Sockets) Discard() {
	done := s.Release()
	defer done()
	s.Close()
	s.Programs.Close()
}

// drained reports whether no connection waits at a listening socket. The kernel
// counts those in the place where it else counts segments (tcp_get_info).
func drained(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || info.Unacked == 0
}
