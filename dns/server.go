package dns

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	miekg "github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
)

// Limits bound what sandboxes can make a [Server] hold. Zero fields have the stated defaults. Of questions and connections,
// no sandbox has more than are free for others. The gate bounds how much each sandbox may ask.
type Limits struct {
	InFlight    int           // questions under way over UDP; 1024
	Connections int           // over TCP, of all listeners; 256
	PerSource   int           // of those, from one address; 32
	PerSecond   int           // questions of one sandbox, as the gate bounds them; 200. No more than about twice as many are read
	Idle        time.Duration // for a whole message to come, and a response to go; 10 s
}

func (l Limits) withDefaults() Limits {
	return Limits{cmp.Or(l.InFlight, 1024), cmp.Or(l.Connections, 256), cmp.Or(l.PerSource, 32), cmp.Or(l.PerSecond, 200), cmp.Or(l.Idle, 10*time.Second)}
}

// A Server is the name server of sandboxes. Each question has a goroutine, on which it is read, decided and answered
// ([Server.respond]).
//
// It accepts one question a message (RFC 1035, opcode QUERY), and makes each message anew. It tells the addresses of names
// that the sandbox may reach, without showing aliases, and SRV or TXT records if the gate's resolver has them asked for. It refuses the rest
// without asking anyone. HTTPS and SVCB records (RFC 9460) do not exist for any name: their addresses, ports and keys
// would lead around what was decided.
//
// Fields may not be changed once it serves.
type Server struct {
	Gate   *egress.Gate
	Limits Limits

	// Placeholders is for captured sandboxes: every name, allowed or denied, has a placeholder address
	// ([egress.Names.Bind]). So no question for an address is forwarded, and a connection to a denied name reaches
	// egressd, which can say why. Each socket is of one sandbox, and has come from there.
	Placeholders bool

	// Program says which program asks from an address, over network "udp" or "tcp",
	// at another, which is not known for a datagram; it may be nil. It is called by
	// any goroutine.
	Program func(network string, from, to netip.AddrPort) *policy.Process

	start   sync.Once
	limits  Limits
	flying  fair.Pool[sandbox.Holder] // questions over UDP
	streams fair.Pool[sandbox.Holder] // connections
	sources fair.Pool[netip.Addr]     // the same, by address
	life    context.Context
	die     context.CancelFunc

	mu      sync.Mutex // guards what follows
	open    map[io.Closer]struct{}
	stopped bool
	serving sync.WaitGroup // sockets, connections and questions; a socket is added with mu held and stopped not set
}

// ErrServerClosed is what the Serve methods return after Shutdown.
var ErrServerClosed = errors.New("dns: server closed")

const (
	maxQuery     = 4096    // bytes of a message; a name and an OPT record fit in far less
	socketBuffer = 4 << 20 // bytes to send, and to receive; the kernel may give less (net.core.wmem_max, rmem_max)
)

func (s *Server) prepare() {
	s.limits = s.Limits.withDefaults()
	s.flying.Most, s.streams.Most = s.limits.InFlight, s.limits.Connections
	s.sources.Most, s.sources.MostOfOne = 2*s.limits.Connections, s.limits.PerSource
	s.life, s.die = context.WithCancel(context.Background())
	s.open = map[io.Closer]struct{}{}
}

// keep has Shutdown close c and wait for release, which closes it, too. It reports false if Shutdown was called already.
func (s *Server) keep(c io.Closer) (release func(), ok bool) {
	s.start.Do(s.prepare)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		c.Close()
		return nil, false
	}
	s.open[c] = struct{}{}
	s.serving.Add(1)
	return func() {
		c.Close()
		s.mu.Lock()
		delete(s.open, c)
		s.mu.Unlock()
		s.serving.Done()
	}, true
}

// Shutdown ends all Serve methods and waits for them. Questions under way get no answer.
func (s *Server) Shutdown() {
	s.start.Do(s.prepare)
	s.die()
	s.mu.Lock()
	s.stopped = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.serving.Wait()
}

// pause waits a little after an error that may pass. It reports false after Shutdown.
func (s *Server) pause() bool {
	select {
	case <-s.life.Done():
		return false
	case <-time.After(20 * time.Millisecond):
		return true
	}
}

// peerAt is who sends from an address to the listener that is called name.
func peerAt(from netip.AddrPort, name string) sandbox.Peer {
	return sandbox.Peer{Addr: plainAddr(from), Listener: name}
}

// plainAddr is an address without the marks of a socket for both families, and of an interface.
func plainAddr(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// ServeUDP answers what arrives at c, a [net.UDPConn] that it owns, from the address that it was sent to. name
// is what the configuration calls c: a sandbox may be known by it. ServeUDP returns after an error, or with ErrServerClosed.
func (s *Server) ServeUDP(c net.PacketConn, name string) error {
	conn := c.(*net.UDPConn)
	release, ok := s.keep(conn)
	if !ok {
		return ErrServerClosed
	}
	defer release()
	if err := prepareSocket(conn); err != nil {
		return err
	}
	in := newIntake(s, conn, name)
	defer in.settle()
	for room := make([]byte, maxQuery+1); ; {
		n, session, err := miekg.ReadFromSessionUDP(conn, room)
		now := time.Now()
		in.tick(now)
		switch {
		case err == nil:
		case s.life.Err() != nil:
			return ErrServerClosed
		case errors.Is(err, net.ErrClosed):
			return err
		case errors.Is(err, syscall.EAGAIN) || isTimeout(err) || s.pause():
			continue
		default:
			return ErrServerClosed
		}
		from, known := session.RemoteAddr().(*net.UDPAddr)
		if !known || from == nil || from.Port == 0 {
			if n == 0 && (from == nil || from.IP.IsUnspecified()) {
				return io.EOF // the sandbox has the socket, too, and has shut it: each read returns at once
			}
			continue // nobody could get a response
		}
		peer := peerAt(from.AddrPort(), name)
		who, ok := in.admit(peer, now)
		if !ok {
			continue
		}
		msg := bytes.Clone(room[:n])
		s.serving.Go(func() {
			defer s.flying.Release(who)
			if b := s.respond("udp", peer, conn.LocalAddr(), msg); b != nil {
				_, _ = miekg.WriteToSessionUDP(conn, b, session) // a client that has no response asks again
			}
		})
	}
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// prepareSocket has the kernel say which address datagrams were sent to, if that may be any of the host's.
func prepareSocket(c *net.UDPConn) error {
	// The kernel queues up to 208 KiB for a neighbour that does not answer. With the default buffer, that queue would
	// hold up the responses to all others.
	_ = c.SetWriteBuffer(socketBuffer)
	_ = c.SetReadBuffer(socketBuffer)
	if local, ok := c.LocalAddr().(*net.UDPAddr); !ok || !local.IP.IsUnspecified() {
		return nil
	}
	err6 := ipv6.NewPacketConn(c).SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true)
	err4 := ipv4.NewPacketConn(c).SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true)
	if err6 != nil && err4 != nil {
		return err4
	}
	return nil
}

// ServeTCP is ServeUDP for connections (RFC 7766). On each, one question is answered after the other.
func (s *Server) ServeTCP(l net.Listener, name string) error {
	release, ok := s.keep(l)
	if !ok {
		return ErrServerClosed
	}
	defer release()
	if s.Placeholders {
		l = foreign.Listener{Listener: l}
	}
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			s.accepted(c, name)
		case s.life.Err() != nil:
			return ErrServerClosed
		case !temporary(err):
			return err
		case !s.pause():
			return ErrServerClosed
		}
	}
}

// temporary reports whether Accept may succeed later: the error concerns one connection, or descriptors ran out.
func temporary(err error) bool {
	t, ok := err.(interface{ Temporary() bool })
	return ok && t.Temporary()
}

// accepted serves a connection, if its sandbox and its address may have one more.
func (s *Server) accepted(c net.Conn, name string) {
	release, ok := s.keep(c)
	if !ok {
		return
	}
	from, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		release()
		return
	}
	peer := peerAt(from.AddrPort(), name)
	who, source := s.Gate.Names.Holder(peer), peer.Addr.Addr()
	if !s.mayConnect(who, source) {
		_ = s.Gate.Names.Refuse(peer, nil, policy.TooManyFlows, "too many connections to the name server are open")
		release()
		return
	}
	s.serving.Go(func() {
		defer release()
		defer s.sources.Release(source)
		defer s.streams.Release(who)
		s.stream(c, peer)
	})
}

// mayConnect counts a connection with its address and with its sandbox.
func (s *Server) mayConnect(who sandbox.Holder, source netip.Addr) bool {
	if !s.sources.Acquire(source) {
		return false
	}
	if !s.streams.Acquire(who) {
		s.sources.Release(source)
		return false
	}
	return true
}

// stream answers what comes on c, until it has nothing more to say in time.
func (s *Server) stream(c net.Conn, peer sandbox.Peer) {
	for room := make([]byte, 512); ; {
		if c.SetDeadline(time.Now().Add(s.limits.Idle)) != nil {
			return
		}
		msg, err := readFrame(c, room)
		if err != nil {
			if msg != nil {
				_ = s.Gate.Names.Refuse(peer, msg, policy.MalformedRequest, "the message is longer than a question, or shorter than its length says")
			}
			return
		}
		b := s.respond("tcp", peer, c.LocalAddr(), msg)
		if b == nil || c.SetDeadline(time.Now().Add(s.limits.Idle)) != nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)); err != nil {
			return
		}
	}
}

// readFrame reads one message after its length (RFC 1035 section 4.2.2), into
// room if it fits. Beside an error it returns what came of a message, or nil
// if none was begun.
func readFrame(r io.Reader, room []byte) ([]byte, error) {
	var length [2]byte
	if n, err := io.ReadFull(r, length[:]); err != nil {
		if n > 0 {
			return length[:n], err
		}
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(length[:]))
	if size > maxQuery {
		return length[:], errBroken
	}
	if size > cap(room) {
		room = make([]byte, size)
	}
	n, err := io.ReadFull(r, room[:size])
	return room[:n], err
}
