package capture

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/sandbox/foreign"
)

// drainFor bounds Drain. Servers accept waiting connections within microseconds.
const drainFor = 200 * time.Millisecond

// Drain waits until the servers of the sockets have accepted all waiting connections.
func (s *Sockets) Drain() {
	until := time.Now().Add(drainFor)
	for _, fd := range s.held {
		for foreign.Listening(fd) && !drained(fd) && time.Now().Before(until) {
			time.Sleep(time.Millisecond)
		}
	}
}

// Release keeps shutting foreign sockets down until done is called, so that every goroutine that waits at one
// returns. Closing a socket is not enough, because its other owner may have made it blocking.
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

// Close closes the sockets. The caller closes Programs and Dialers.
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

// Discard closes foreign sockets that no goroutine waits at yet, and Programs.
func (s *Sockets) Discard() {
	done := s.Release()
	defer done()
	s.Close()
	s.Programs.Close()
}

// drained reports whether no connection waits at a listening socket. The kernel reports their number in the
// field for unacknowledged segments (tcp_get_info).
func drained(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || info.Unacked == 0
}
