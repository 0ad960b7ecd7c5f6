package dns

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/recovered"
	"github.com/egressd/egressd/internal/tokens"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// ServerLimits bound what sandboxes can make a [Server] hold. Zero fields have
// the stated defaults.
type ServerLimits struct {
	InFlight    int           // questions under way at a time; 512
	Connections int           // over TCP, on each listener; 64
	Idle        time.Duration // of a connection; 10 s
	PerSecond   int           // questions of one socket's sandbox, over a longer time; 200
	Burst       int           // and at once; 1000
}

func (l ServerLimits) filled() ServerLimits {
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

// A Server is the name server of captured sandboxes. It answers every name, allowed or denied, with a placeholder address of that
// sandbox ([egress.Gate.Assign]). So no question is ever forwarded, and a connection to a denied name reaches
// egressd, which can say why. Special names are answered by [known].
//
// It serves questions for addresses alone (RFC 1035, opcode QUERY, one question).
// Fields may not be changed once it serves.
type Server struct {
	Gate   *egress.Gate
	Limits ServerLimits

	// Program says which program asks from an address, over network "udp" or "tcp",
	// at another, which is not known for a datagram; it may be nil. It is called by
	// any goroutine.
	Program func(network string, from, to netip.AddrPort) *policy.Process

	start    sync.Once
	limits   ServerLimits
	inFlight atomic.Int64

	mu      sync.Mutex // guards what follows
	running []*dns.Server
	stopped bool
}

// ErrServerClosed is what the Serve methods return after Shutdown.
var ErrServerClosed = errors.New("dns: server closed")

// ServeUDP answers what arrives at c, from the address that it was sent to. name
// is what the configuration calls c: a sandbox is known by it. The server owns c.
func (s *Server) ServeUDP(c net.PacketConn, name string) error {
	return s.serve(&dns.Server{PacketConn: c}, c.Close, name)
}

// ServeTCP is ServeUDP for connections.
func (s *Server) ServeTCP(l net.Listener, name string) error {
	s.start.Do(s.prepare)
	few := &fewConns{Listener: l, free: make(chan struct{}, s.limits.Connections)}
	return s.serve(&dns.Server{Listener: few}, l.Close, name)
}

func (s *Server) prepare() { s.limits = s.Limits.filled() }

func (s *Server) serve(d *dns.Server, release func() error, name string) error {
	s.start.Do(s.prepare)
	defer release()
	b := &tokens.Bucket{Rate: float64(s.limits.PerSecond), Most: float64(s.limits.Burst)}
	h := &handler{server: s, name: name, budget: b}
	started := make(chan struct{})
	d.Handler, d.MsgAcceptFunc, d.MsgInvalidFunc = h, h.accept, h.invalid
	d.UDPSize, d.ReadTimeout, d.WriteTimeout = maxUDP, s.limits.Idle, s.limits.Idle
	d.IdleTimeout = func() time.Duration { return s.limits.Idle }
	d.DecorateReader = func(r dns.Reader) dns.Reader { return openReader{r, readBudget(s.limits.PerSecond)} }
	d.NotifyStartedFunc = func() { close(started) }
	done := make(chan error, 1)
	go func() { done <- d.ActivateAndServe() }()
	select {
	case <-started:
	case err := <-done:
		return err
	}
	if !s.admit(d) {
		d.Shutdown()
	}
	if err := <-done; err != nil && !s.isStopped() {
		return err
	}
	return ErrServerClosed
}

// An openReader reads the datagrams of one sandbox no faster than its budget allows, so that a flood costs nobody else
// anything: what does not fit into the socket's buffer meanwhile is dropped by the kernel.
//
// The sandbox may have the socket, too, and may have shut it. Then each read returns at once and
// without a datagram, and the openReader ends.
type openReader struct {
	dns.Reader
	budget *tokens.Bucket
}

func (r openReader) ReadUDP(c *net.UDPConn, patience time.Duration) ([]byte, *dns.SessionUDP, error) {
	m, from, err := r.Reader.ReadUDP(c, patience)
	for {
		if ok, _ := r.budget.Take(1, time.Now()); ok {
			break
		}
		time.Sleep(time.Duration(float64(time.Second) / r.budget.Rate)) // at most 10 ms
	}
	if err != nil || len(m) > 0 {
		return m, from, err
	}
	if at, ok := from.RemoteAddr().(*net.UDPAddr); !ok || at == nil || at.Port == 0 && at.IP.IsUnspecified() {
		return nil, nil, io.EOF
	}
	return m, from, nil
}

const maxUDP = 4096 // bytes of a question; a name and an OPT record fit in far less

func (s *Server) admit(d *dns.Server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.running = append(s.running, d)
	}
	return !s.stopped
}

func (s *Server) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// Shutdown ends all Serve methods. Questions under way are answered.
func (s *Server) Shutdown() {
	s.mu.Lock()
	running := s.running
	s.running, s.stopped = nil, true
	s.mu.Unlock()
	for _, d := range running {
		_ = d.Shutdown() // its only error is that it does not run
	}
}

// A handler answers what arrives at one socket.
type handler struct {
	server *Server
	name   string
	budget *tokens.Bucket
}

// accept lets only plain queries be parsed. Other messages are recorded, since they may carry data out.
func (h *handler) accept(head dns.Header) dns.MsgAcceptAction {
	const response, opcodes = 1 << 15, 0xf << 11
	switch {
	case head.Bits&response != 0:
		return dns.MsgIgnore
	case head.Bits&opcodes != 0:
		h.refuse(nil, "only queries are answered")
		return dns.MsgRejectNotImplemented
	case head.Qdcount != 1 || head.Ancount != 0 || head.Nscount != 0 || head.Arcount > 1:
		h.refuse(nil, "a query has one question and no records but OPT")
		return dns.MsgReject
	}
	return dns.MsgAccept
}

func (h *handler) invalid(m []byte, _ error) { h.refuse(m, "the message cannot be parsed") }

// refuse records what is no question, and what it was as long as the budget lasts.
func (h *handler) refuse(raw []byte, why string) {
	if ok, _ := h.budget.Take(1, time.Now()); !ok {
		raw = nil // so that those that repeat are one record
	}
	h.server.Gate.Refuse(sandbox.Peer{Listener: h.name}, policy.ViaDNS, raw, policy.MalformedRequest, why)
}

// ServeDNS implements [dns.Handler].
func (h *handler) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	s := h.server
	defer s.inFlight.Add(-1)
	if s.inFlight.Add(1) > int64(s.limits.InFlight) {
		return // whoever asked asks again
	}
	defer recovered.Log(toAnswer, func() {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
	})
	_ = w.WriteMsg(h.answer(h.peer(w), q))
}

func (h *handler) peer(w dns.ResponseWriter) sandbox.Peer {
	p := peerOf(w.RemoteAddr(), h.name)
	if who := h.server.Program; who != nil {
		p.Process = who(w.RemoteAddr().Network(), p.Addr, peerOf(w.LocalAddr(), "").Addr)
	}
	return p
}

func peerOf(a net.Addr, name string) sandbox.Peer {
	var from netip.AddrPort
	switch a := a.(type) {
	case *net.UDPAddr:
		from = a.AddrPort()
	case *net.TCPAddr:
		from = a.AddrPort()
	}
	if from.IsValid() {
		from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
	}
	return sandbox.Peer{Addr: from, Listener: name}
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
	if socket, ok := c.(syscall.Conn); !ok || sandbox.Plain(socket) != nil {
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
