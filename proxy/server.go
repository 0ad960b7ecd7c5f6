// Package proxy is the ways in of egressd: HTTP with absolute targets, CONNECT and SOCKS5 on one port
// or Unix socket, told apart by their first byte; and captured TCP connections of programs that know no proxy
// ([Server.ServeTransparent]).
//
// The package parses requests and renders replies. The [egress.Gate] decides, resolves, dials and records.
// Package forward forwards HTTP/1 requests. Package inspect serves the inside of TLS.
//
//	s := &proxy.Server{Gate: gate, Sandboxes: directory}
//	go s.Serve(listener, "127.0.0.1:3128")
//	…
//	s.Shutdown(ctx)
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/forward"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/sandbox"
)

// Limits bound what a client can make the server hold. Zero fields have the stated defaults.
type Limits = forward.Limits

// A Server accepts on any number of listeners. Gate and Sandboxes have to be
// set; fields may not be changed once Serve was called.
type Server struct {
	Gate      *egress.Gate
	Sandboxes *sandbox.Directory
	Limits    Limits
	// Loops is how many event loops carry tunnels; 0 means one for each two
	// processors.
	Loops int
	// Program says which program has a captured connection of a listener, as far as
	// can be told within a few milliseconds; it may be nil. It is called by any
	// goroutine.
	Program func(listener string, from, to netip.AddrPort) *policy.Process
	// Host are the addresses of the host on which ServeTransparent is called, as
	// they are now; it may be nil. It is asked for every captured connection.
	Host func() []netip.Addr

	start          sync.Once
	startErr       error
	forwarder      forward.Forwarder
	inspector      inspect.Inspector
	limitsCount    atomic.Int64 // in tunnels
	limitsOf       sync.Map     // *relay.Meter of a sandbox to the *tunnelLimits of its tunnels
	loops          []*relay.Loop
	loopTables     loopTables
	connections    connQuota     // connections
	tlsConnections connQuota     // those of TLS listeners, around the ones that are inside
	refusals       refusals      // that wait for the log
	lingerTime     time.Duration // of a client that has its last answer and has not closed, for tests; 0: a second
	backlogLimit   int           // of what waits at a listener that ends, for tests; 0: backlogMost

	mu             sync.Mutex // guards what follows
	listeners      []*loopListener
	stopping       bool
	programLookups sync.WaitGroup // searches for the programs of captured connections
	running        sync.WaitGroup // loops, and goroutines that serve a connection
	clients        map[net.Conn]struct{}
	accepting      []net.Listener // of TLS
	otherLoops     []*relay.Loop  // beside loops, those among freeLoops included
	freeLoops      []*relay.Loop  // of OwnLoops
	tlsClients     map[*tlsClient]struct{}
	tlsServing     sync.WaitGroup              // goroutines of tlsClients
	handshakes     map[netip.Addr][]*tlsClient // TLS handshakes under way, by source, the oldest first
}

// ErrClosed is what Serve returns after Shutdown.
var ErrClosed = errors.New("proxy: server closed")

// Serve accepts from l, which the server owns from now on, until Shutdown.
// name is what the configuration calls l: a sandbox may be known by it.
func (s *Server) Serve(l net.Listener, name string) error { return s.serve(l, wayIn{name: name}) }

func (s *Server) serve(l net.Listener, by wayIn) error {
	defer l.Close()
	s.start.Do(s.prepare)
	if s.startErr != nil {
		return s.startErr
	}
	var open sync.WaitGroup
	var left atomic.Int32
	all := make([]*loopListener, 0, len(s.loops))
	for i, loop := range s.loops {
		fd, err := relay.Duplicate(l)
		if err != nil {
			closeAll(all)
			return fmt.Errorf("listener %s: %w", by.name, err)
		}
		all = append(all, &loopListener{server: s, wayIn: by, at: boundTo(l), fd: fd, loop: loop, number: i, open: &open, left: &left})
	}
	if !s.register(all) {
		closeAll(all)
	}
	leaveToLoops(l)
	open.Wait()
	return ErrClosed
}

// limitsMost bounds what is kept for sandboxes: those that attach their network may have any
// name.
const limitsMost = 1024

// tunnelLimits are those of one sandbox's tunnels, which share its meter.
type tunnelLimits struct {
	web, other relay.Limits // web: to 443 and 80, where the client speaks first
}

// limitsFor returns the limits of a tunnel whose bytes m counts.
func (s *Server) limitsFor(m *relay.Meter, web bool) *relay.Limits {
	found, ok := s.limitsOf.Load(m)
	if !ok {
		l := tunnelLimits{web: relay.Limits{
			First: s.forwarder.Limits.Hello, FirstBytes: s.forwarder.Limits.HelloBytes, Idle: s.forwarder.Limits.Idle, Life: s.forwarder.Limits.Lifetime, Meter: m,
		}}
		l.other = l.web
		l.other.ServerFirst = true
		if s.limitsCount.Add(1) > limitsMost { // most are of sandboxes that are gone; the others' are made anew
			s.limitsCount.Store(1)
			s.limitsOf.Clear()
		}
		found, _ = s.limitsOf.LoadOrStore(m, &l)
	}
	l := found.(*tunnelLimits)
	if web {
		return &l.web
	}
	return &l.other
}

// register has the listeners of one socket begin, unless the server stops. All of them count
// before one can end: who ends last says what still waits.
func (s *Server) register(all []*loopListener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	for _, in := range all {
		in.open.Add(1)
		in.left.Add(1)
	}
	s.listeners = append(s.listeners, all...)
	for _, in := range all {
		in.loop.Post(in.begin)
	}
	return true
}

func (s *Server) prepare() {
	s.forwarder.Prepare(s.Gate, s.Sandboxes, s.Limits)
	s.inspector.Prepare(&s.forwarder)
	s.clients = map[net.Conn]struct{}{}
	for _, p := range []*connQuota{&s.connections, &s.tlsConnections} {
		p.server, p.most, p.holders = s, s.forwarder.Limits.Connections, map[sandbox.Holder]*connHolder{}
	}
	s.tlsClients, s.handshakes = map[*tlsClient]struct{}{}, map[netip.Addr][]*tlsClient{}
	for range max(1, s.loopCount()) {
		loop, err := relay.NewLoop()
		if err != nil {
			s.startErr = fmt.Errorf("event loop: %w", err)
			return
		}
		s.loops = append(s.loops, loop)
		s.running.Go(func() { loop.Run() })
	}
}

// Shutdown stops accepting, waits for tunnels to end by themselves until ctx
// is done, then cuts those that are left, so that their records say so.
func (s *Server) Shutdown(ctx context.Context) error {
	s.start.Do(s.prepare)
	s.stopAccepting()
	settle(s.allLoops()) // whoever has begun a connection is to be in the log
	s.programLookups.Wait()
	settle(s.allLoops())
	for s.connections.count() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	left := s.connections.count()
	s.Gate.Shut()
	s.closeHosted()
	for _, l := range s.allLoops() {
		l.Close()
	}
	s.running.Wait()
	s.closeTLSClients()
	s.Gate.CloseLeft()
	if left > 0 {
		return fmt.Errorf("%d connections were cut", left)
	}
	return nil
}

// settle waits until loops have done what they were given to do until now.
func settle(loops []*relay.Loop) {
	for _, l := range loops {
		done := make(chan struct{})
		if l.Post(func() { close(done) }) {
			<-done
		}
	}
}

func (s *Server) allLoops() []*relay.Loop {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.loops, s.otherLoops)
}

func (s *Server) stopAccepting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return
	}
	s.stopping = true
	for _, in := range s.listeners {
		in.loop.Post(in.end)
	}
	for _, l := range s.accepting {
		l.Close()
	}
}

// onGoroutine keeps track of a connection that a goroutine serves.
func (s *Server) onGoroutine(c net.Conn, at *admission, serve func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.clients[c] = struct{}{}
	s.running.Go(func() {
		defer s.release(c, at)
		serve()
	})
	return true
}

func (s *Server) release(c net.Conn, at *admission) {
	c.Close()
	s.mu.Lock()
	delete(s.clients, c)
	s.mu.Unlock()
	s.connections.release(at)
}

func (s *Server) closeHosted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forwarder.Cut()
	for c := range s.clients {
		c.Close()
	}
}

// Inspect sets what the TLS of tunnels that begin from now on is inspected with. Before the first call,
// and after Inspect(nil), tunnels that have to be inspected are closed. It is safe for concurrent use.
func (s *Server) Inspect(i *inspect.Inspection) { s.inspector.Inspect(i) }

// AnswerDenials sets what denied TLS is answered with while nothing is inspected. It is safe for concurrent use.
func (s *Server) AnswerDenials(d *inspect.Denials) { s.inspector.AnswerDenials(d) }
