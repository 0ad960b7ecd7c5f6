package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox/foreign"
)

// PlaceholderLimits bound what sandboxes can make a [PlaceholderServer] hold. Zero fields have
// the stated defaults.
type PlaceholderLimits struct {
	InFlight    int           // questions under way at a time; 512
	Connections int           // over TCP, on each listener; 64
	Idle        time.Duration // of a connection; 10 s
	PerSecond   int           // questions of one socket's sandbox, over a longer time; 200
	Burst       int           // and at once; 1000
}

func (l PlaceholderLimits) filled() PlaceholderLimits {
	fill := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	fill(&l.InFlight, 512)
	fill(&l.Connections, 64)
	fill(&l.PerSecond, 200)
	fill(&l.Burst, 1000)
	if l.Idle == 0 {
		l.Idle = 10 * time.Second
	}
	return l
}

// A PlaceholderServer is the name server of captured sandboxes. It answers every name, allowed or denied, with a placeholder address of that
// sandbox ([egress.Names.Bind]). So no question for an address is ever forwarded, and a connection to a denied name
// reaches egressd, which can say why. Some names have the same answer everywhere. Questions of other types go to the
// resolver if the configuration names the type (upstream.dns_types) and the policy lets the name be; else they are refused.
//
// It takes one question a message (RFC 1035, opcode QUERY).
// Fields may not be changed once it serves.
type PlaceholderServer struct {
	Gate   *egress.Gate
	Limits PlaceholderLimits

	// Program says which program asks from an address, over network "udp" or "tcp",
	// at another, which is not known for a datagram; it may be nil. It is called by
	// any goroutine.
	Program func(network string, from, to netip.AddrPort) *policy.Process

	start    sync.Once
	life     context.Context // of lookups
	die      context.CancelFunc
	limits   PlaceholderLimits
	inFlight atomic.Int64

	mu      sync.Mutex           // guards what follows
	running map[*func()]struct{} // what ends the reading from each socket and connection
	stopped bool
	serving sync.WaitGroup // those, and questions under way
}

// ErrServerClosed is what the Serve methods return after Shutdown.
var ErrServerClosed = errors.New("dns: server closed")

const maxUDP = 4096 // bytes of a question; a name and an OPT record fit in far less

var longAgo = time.Unix(1, 0)

// keep has Shutdown call stop and wait for release. It reports false where Shutdown was called already.
func (s *PlaceholderServer) keep(stop func()) (release func(), ok bool) {
	s.start.Do(s.prepare)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, false
	}
	if s.running == nil {
		s.running = map[*func()]struct{}{}
	}
	s.running[&stop] = struct{}{}
	s.serving.Add(1)
	return func() {
		s.mu.Lock()
		delete(s.running, &stop)
		s.mu.Unlock()
		s.serving.Done()
	}, true
}

func (s *PlaceholderServer) prepare() {
	s.limits = s.Limits.filled()
	s.life, s.die = context.WithCancel(context.Background())
}

func (s *PlaceholderServer) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// Shutdown ends all Serve methods. Questions under way are answered, those that wait for an upstream with a failure.
func (s *PlaceholderServer) Shutdown() {
	s.start.Do(s.prepare)
	s.die()
	s.mu.Lock()
	s.stopped = true
	for stop := range s.running {
		(*stop)()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

// ServeUDP answers what arrives at c, a [net.UDPConn], from the address that it was sent to. name
// is what the configuration calls c: a sandbox is known by it. The server owns c.
func (s *PlaceholderServer) ServeUDP(c net.PacketConn, name string) error {
	defer c.Close()
	release, ok := s.keep(func() { c.SetReadDeadline(longAgo) })
	if !ok {
		return ErrServerClosed
	}
	defer release()
	d := &questions{conn: c.(*net.UDPConn), handler: s.handler(name)}
	defer d.answers.Wait()
	if err := d.prepare(); err != nil {
		return err
	}
	for budget := readBudget(s.limits.PerSecond); ; await(budget) {
		err := d.next()
		switch {
		case s.isStopped():
			return ErrServerClosed
		case err != nil && !temporary(err):
			return err
		}
	}
}

// questions are the datagrams of one socket. They are read no faster than the sandbox's budget allows, so that a flood
// costs nobody else anything: what does not fit into the socket's buffer meanwhile is dropped by the kernel.
type questions struct {
	*handler
	conn    *net.UDPConn
	answers sync.WaitGroup // under way
	room    [maxUDP]byte
	control [128]byte
}

// prepare has the kernel say which address datagrams were sent to, where that may be any.
func (d *questions) prepare() error {
	local := d.conn.LocalAddr().(*net.UDPAddr)
	if !local.IP.IsUnspecified() {
		return nil
	}
	raw, err := d.conn.SyscallConn()
	if err != nil {
		return err
	}
	return askForDestinations(raw, local.AddrPort().Addr().Is4())
}

// next reads a datagram and has it answered. The sandbox may have the socket, too, and may have shut it. Then
// each read returns at once and without a datagram, and next returns [io.EOF].
func (d *questions) next() error {
	n, c, _, from, err := d.conn.ReadMsgUDPAddrPort(d.room[:], d.control[:])
	switch {
	case err != nil:
		return err
	case from.Port() == 0:
		if n == 0 && from.Addr().IsUnspecified() {
			return io.EOF
		}
		return nil // nobody could get a response
	}
	msg, way := bytes.Clone(d.room[:n]), backFrom(d.control[:c])
	d.answers.Go(func() {
		if b := d.respond(nil, msg, d.peer("udp", from, d.conn.LocalAddr()), 0); b != nil {
			_, _, _ = d.conn.WriteMsgUDPAddrPort(b, way, from)
		}
	})
	return nil
}

// ServeTCP is ServeUDP for connections (RFC 7766). On each, one question is answered after the other.
func (s *PlaceholderServer) ServeTCP(l net.Listener, name string) error {
	defer l.Close()
	release, ok := s.keep(func() { l.Close() })
	if !ok {
		return ErrServerClosed
	}
	defer release()
	few := &fewConns{Listener: l, free: make(chan struct{}, s.limits.Connections)}
	for h := s.handler(name); ; {
		c, err := few.Accept()
		switch {
		case s.isStopped():
			if err == nil {
				c.Close()
			}
			return ErrServerClosed
		case err != nil && !temporary(err):
			return err
		case err != nil:
			time.Sleep(20 * time.Millisecond)
			continue
		}
		h.accepted(c)
	}
}

func (h *handler) accepted(c net.Conn) {
	from, _ := c.RemoteAddr().(*net.TCPAddr)
	release, ok := h.server.keep(func() { c.SetReadDeadline(longAgo) })
	if !ok || from == nil {
		c.Close()
		return
	}
	go func() {
		defer release()
		defer c.Close()
		h.stream(c, from.AddrPort())
	}()
}

// stream answers what comes on c, until it has nothing more to say in time.
func (h *handler) stream(c net.Conn, from netip.AddrPort) {
	in, out := make([]byte, 512), []byte(nil)
	for h.mayRead(c) {
		msg, err := readFrame(c, in)
		if err != nil {
			return
		}
		in = msg[:cap(msg)]
		b := h.respond(append(out[:0], 0, 0), msg, h.peer("tcp", from, c.LocalAddr()), 1<<16-1)
		if b == nil {
			continue
		}
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
		if c.SetWriteDeadline(time.Now().Add(h.server.limits.Idle)) != nil {
			return
		}
		if _, err := c.Write(b); err != nil {
			return
		}
		out = b
	}
}

// mayRead gives the next question its time, unless the server is shut.
func (h *handler) mayRead(c net.Conn) bool {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	return !h.server.stopped && c.SetReadDeadline(time.Now().Add(h.server.limits.Idle)) == nil
}

// fewConns accepts no more connections than free has room for.
type fewConns struct {
	net.Listener
	free chan struct{}
}

func (l *fewConns) Accept() (net.Conn, error) {
	l.free <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	if socket, ok := c.(syscall.Conn); !ok || foreign.Plain(socket) != nil {
		c.Close() // whoever reads from it is told so
	}
	return &fewConn{Conn: c, release: sync.OnceFunc(func() { <-l.free })}, nil
}

type fewConn struct {
	net.Conn
	release func()
}

func (c *fewConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
