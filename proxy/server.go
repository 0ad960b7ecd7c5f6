// Package proxy is the ways in of egressd: HTTP with absolute targets, CONNECT and SOCKS5 on one port
// or Unix socket, told apart by their first byte; and captured TCP connections of programs that know no proxy
// ([Server.ServeTransparent]).
//
// The package parses requests and renders replies. The [egress.Gate] decides, resolves, dials and records.
// Package exchange has each request of HTTP decided and answered. Package inspect serves the inside of TLS.
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
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/carry"
	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/exchange"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/sandbox"
)

// Limits bound what a client can make the server hold. Zero fields have the stated defaults.
type Limits = exchange.Limits

// A Server accepts on any number of listeners. Gate and Sandboxes have to be
// set; fields may not be changed once Serve was called.
type Server struct {
	Gate      *egress.Gate
	Sandboxes *sandbox.Directory
	Limits    Limits
	// Program says which program has a captured connection of a listener, as far as
	// can be told within a few milliseconds; it may be nil. It is called by any
	// goroutine.
	Program func(listener string, from, to netip.AddrPort) *policy.Process
	// Host are the addresses of the host on which ServeTransparent is called, as
	// they are now; it may be nil. It is asked for every captured connection.
	Host func() []netip.Addr

	start        sync.Once
	forwarder    exchange.Forwarder
	inspector    inspect.Inspector
	carrying     carry.Set    // tunnels
	limitsCount  atomic.Int64 // in limitsOf
	limitsOf     sync.Map     // *carry.Meter of a sandbox to the *tunnelLimits of its tunnels
	connections  fair.Connections[sandbox.Holder]
	refusals     refusals      // that wait for the log
	lingerTime   time.Duration // of a client that has its last answer and has not closed, for tests; 0: a second
	backlogLimit int           // of what waits at a listener that ends, for tests; 0: backlogMost

	mu         sync.Mutex // guards what follows
	stopping   bool
	listeners  map[*listener]struct{}
	conns      map[*conn]struct{}     // that a goroutine serves
	handshakes map[netip.Addr][]*conn // TLS handshakes under way, by source, the oldest first

	accepting sync.WaitGroup // listeners
	running   sync.WaitGroup // goroutines of conns, and others
}

// ErrClosed is what Serve returns after Shutdown.
var ErrClosed = errors.New("proxy: server closed")

// Serve accepts from l, which the server owns from now on, until Shutdown or until l is closed.
// name is what the configuration calls l: a sandbox may be known by it.
func (s *Server) Serve(l net.Listener, name string) error {
	return (&listener{Listener: l, server: s, name: name}).serve()
}

// limitsMost bounds what is kept for sandboxes: those that attach their network may have any
// name.
const limitsMost = 1024

// tunnelLimits are those of one sandbox's tunnels, which share its meter.
type tunnelLimits struct {
	near, far carry.Limits // far: of clients that have a network of their own, whose tunnels take turns
	turn      sync.Mutex   // of far
}

// limitsFor returns the limits of a tunnel whose bytes m counts.
func (s *Server) limitsFor(m *carry.Meter, far bool) *carry.Limits {
	found, ok := s.limitsOf.Load(m)
	if !ok {
		l := &tunnelLimits{near: carry.Limits{Idle: s.forwarder.Limits.Idle, Life: s.forwarder.Limits.Lifetime, Meter: m}}
		l.far = l.near
		l.far.Turn = &l.turn
		if s.limitsCount.Add(1) > limitsMost { // most are of sandboxes that are gone; the others' are made anew
			s.limitsCount.Store(1)
			s.limitsOf.Clear()
		}
		found, _ = s.limitsOf.LoadOrStore(m, l)
	}
	l := found.(*tunnelLimits)
	if far {
		return &l.far
	}
	return &l.near
}

func (s *Server) prepare() {
	s.forwarder.Prepare(s.Gate, s.Sandboxes, s.Limits)
	s.inspector.Prepare(&s.forwarder)
	s.forwarder.LooksInside = s.inspector.LooksInside
	s.connections.Most = s.forwarder.Limits.Connections
	s.listeners, s.conns, s.handshakes = map[*listener]struct{}{}, map[*conn]struct{}{}, map[netip.Addr][]*conn{}
}

// register notes a listener, unless the server stops.
func (s *Server) register(in *listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.listeners[in] = struct{}{}
	s.accepting.Add(1)
	return true
}

func (s *Server) unregister(in *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, in)
	s.accepting.Done()
}

// begin notes a connection that a goroutine is to serve. Listeners that have ended may still bring some.
func (s *Server) begin(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping && c.listener.original == nil {
		return false
	}
	s.conns[c] = struct{}{}
	s.running.Add(1)
	if c.listener.original != nil {
		c.listener.begun.Add(1)
	}
	return true
}

// forget is for a connection that is over, or carried by a tunnel.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// Shutdown stops accepting, waits for tunnels to end by themselves until ctx
// is done, then cuts those that are left, so that their records say so.
func (s *Server) Shutdown(ctx context.Context) error {
	s.start.Do(s.prepare)
	s.stopAccepting()
	s.accepting.Wait()
	for s.connections.Count() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	left := s.connections.Count()
	s.Gate.Shut()
	s.forwarder.Cut()
	s.mu.Lock()
	for c := range s.conns {
		c.shut()
	}
	s.mu.Unlock()
	s.running.Wait()
	s.carrying.Wait()
	s.carrying.Close()
	s.Gate.CloseLeft()
	if left > 0 {
		return fmt.Errorf("%d connections were cut", left)
	}
	return nil
}

func (s *Server) stopAccepting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	for in := range s.listeners {
		in.stop()
	}
}

// Inspect sets what the TLS of tunnels that begin from now on is inspected with. Before the first call,
// and after Inspect(nil), tunnels that have to be inspected are closed. It is safe for concurrent use.
func (s *Server) Inspect(i *inspect.Inspection) {
	s.inspector.Inspect(i)
	if i != nil { // else they are struck out of responses in open tunnels still
		s.forwarder.Secrets.Store(&i.Secrets)
	}
}

// AnswerDenials sets what denied TLS is answered with while nothing is inspected. It is safe for concurrent use.
func (s *Server) AnswerDenials(d *inspect.Denials) { s.inspector.AnswerDenials(d) }
