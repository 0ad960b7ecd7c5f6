package lab

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// keptBytes is how much of what a connection carried is kept.
const keptBytes = 1 << 20

// A Sink is every host of the internet: it accepts each TCP connection to
// whatever address and port, and remembers what arrived on it. Its methods may
// be called from many goroutines at once.
type Sink struct {
	listeners []net.Listener

	mu       sync.Mutex
	arrivals []*Arrival
}

// An Arrival is one TCP connection that came in. It is a [net.Conn] whose
// LocalAddr is the address that was dialled.
type Arrival struct {
	net.Conn

	To, From netip.AddrPort
	Time     time.Time

	mu       sync.Mutex
	received []byte
	total    int64
	ended    chan struct{} // closed when nothing more can arrive
	endOnce  sync.Once
}

// sink listens in n on a port to which a tproxy rule sends everything.
func sink(n *Net, port int) (*Sink, error) {
	s := &Sink{}
	for _, l := range []struct {
		network, host string
		level, option int
	}{
		{"tcp4", "0.0.0.0", syscall.SOL_IP, syscall.IP_TRANSPARENT},
		{"tcp6", "::", syscall.SOL_IPV6, 75}, // IPV6_TRANSPARENT of linux/in6.h
	} {
		lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var refused error
			err := raw.Control(func(fd uintptr) { refused = syscall.SetsockoptInt(int(fd), l.level, l.option, 1) })
			return errors.Join(err, refused)
		}}
		made, err := n.listen(&lc, l.network, net.JoinHostPort(l.host, strconv.Itoa(port)))
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.listeners = append(s.listeners, made)
	}
	return s, nil
}

// Serve hands every connection that arrives to handle, each on a goroutine of
// its own, and closes it when handle returns. It returns when the sink is
// closed.
func (s *Sink) Serve(handle func(*Arrival)) {
	var all sync.WaitGroup
	for _, l := range s.listeners {
		all.Go(func() { s.serve(l, handle) })
	}
	all.Wait()
}

func (s *Sink) serve(l net.Listener, handle func(*Arrival)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		a := s.arrived(c)
		go func() {
			defer a.Close()
			handle(a)
		}()
	}
}

func (s *Sink) arrived(c net.Conn) *Arrival {
	a := &Arrival{Conn: c, To: addrPort(c.LocalAddr()), From: addrPort(c.RemoteAddr()), Time: time.Now(), ended: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrivals = append(s.arrivals, a)
	return a
}

// Mark returns a point in time for [Sink.Since].
func (s *Sink) Mark() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.arrivals)
}

// Since returns the connections that were accepted after the mark.
func (s *Sink) Since(mark int) []*Arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Arrival(nil), s.arrivals[mark:]...)
}

// Close ends the sink. Connections that were accepted stay open.
func (s *Sink) Close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Read reads, and remembers what was read.
func (a *Arrival) Read(b []byte) (int, error) {
	n, err := a.Conn.Read(b)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total += int64(n)
	if room := keptBytes - len(a.received); room > 0 {
		a.received = append(a.received, b[:min(n, room)]...)
	}
	var netErr net.Error
	if err != nil && !(errors.As(err, &netErr) && netErr.Timeout()) {
		a.end()
	}
	return n, err
}

// Close closes the connection.
func (a *Arrival) Close() error {
	a.end()
	return a.Conn.Close()
}

// CloseWrite says that no more is sent.
func (a *Arrival) CloseWrite() error { return a.Conn.(*net.TCPConn).CloseWrite() }

func (a *Arrival) end() { a.endOnce.Do(func() { close(a.ended) }) }

// Ended is closed when nothing more can arrive on a.
func (a *Arrival) Ended() <-chan struct{} { return a.ended }

// Received returns the first MiB of what arrived, and how much arrived in all.
func (a *Arrival) Received() ([]byte, int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]byte(nil), a.received...), a.total
}
