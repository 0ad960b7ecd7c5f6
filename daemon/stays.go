package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/capture"
)

// Limits of attached networks at a time. An attachment can make some threads of this process block, by sockets that its owner
// switches to blocking; the Go runtime ends a process with ten thousand threads. A sandbox may attach another
// network only while it has fewer than are free.
const (
	staysMost      = 96
	staysOfSandbox = 32
	askingOfStay   = 64 // questions for names under way
)

// stays are the networks that were handed in, of a daemon. The zero value has none.
type stays struct {
	ca    atomic.Pointer[[]byte]          // PEM of what sandboxes have to trust, or nil
	drain atomic.Pointer[context.Context] // how long connections have when the daemon stops

	mu       sync.Mutex // guards what follows
	of       map[string]int
	networks map[uint64]string // whose each is, by the kernel's number
	programs map[string]*sandbox.Programs
}

// trust notes what sandboxes have to trust.
func (s *stays) trust(with *inspect.Inspection) {
	if with == nil {
		s.ca.Store(nil)
		return
	}
	pem := with.Authority.PEM()
	s.ca.Store(&pem)
}

// program finds the program behind a captured connection of a stay.
func (s *stays) program(listener string, from, to netip.AddrPort) *policy.Process {
	s.mu.Lock()
	p := s.programs[listener]
	s.mu.Unlock()
	return p.Connected(from, to)
}

// reserve makes room for a network, which nobody has yet.
func (s *stays) reserve(name string, network uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of, s.networks, s.programs = map[string]int{}, map[uint64]string{}, map[string]*sandbox.Programs{}
	}
	switch {
	case s.networks[network] != "":
		return errors.New("this network has been handed in already")
	case len(s.networks) >= staysMost:
		return fmt.Errorf("%d networks are handed in, and that is the most", staysMost)
	case s.of[name] >= min(staysOfSandbox, staysMost-len(s.networks)):
		return fmt.Errorf("%d networks of this sandbox are handed in, and %d of %d in all: no more than %d, nor than are left", s.of[name], len(s.networks), staysMost, staysOfSandbox)
	}
	s.networks[network] = name
	s.of[name]++
	return nil
}

// has reports whether a sandbox of that name has handed a network in, which it has still.
func (s *stays) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[name] > 0
}

// giveBack undoes reserve, and reports whether it was the last of its sandbox.
func (s *stays) giveBack(name string, network uint64) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.networks, network)
	if s.of[name]--; s.of[name] == 0 {
		delete(s.of, name)
		return true
	}
	return false
}

func (s *stays) setPrograms(listener string, p *sandbox.Programs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p == nil {
		delete(s.programs, listener)
	} else {
		s.programs[listener] = p
	}
}

// A stay is one network that was handed in, and what serves it.
type stay struct {
	*sandbox.Attachment
	arrival *attach.Conn
	sockets *capture.Sockets
	names   *dns.Server
	tally   egress.Tally
	serving sync.WaitGroup
}

// enter takes a network in, and returns when nobody is there for it any more.
func (d *Daemon) enter(a *attach.Conn) {
	a.FindContainer(d.sandboxes.Behind)
	who, err := d.sandboxes.IdentifyAttacher(a.Attacher)
	if err != nil {
		d.refuseVisitor(a.Attacher, nil, err)
		a.Refuse(err, nobodyEnters)
		return
	}
	if err := d.stays.reserve(who.Name, a.Network); err != nil {
		d.refuseVisitor(a.Attacher, nil, err)
		a.Refuse(err, "end what it was handed in for, then try again")
		return
	}
	defer func() {
		if last := d.stays.giveBack(who.Name, a.Network); last && !d.sandboxes.Listed(who.Name) {
			d.Gate.Names.Forget(who.Name)
		}
	}()
	sockets, err := a.Sockets()
	if err != nil {
		d.Complain(err)
		a.Refuse(errors.New("the sockets could not be taken"), "egressd enter -- COMMAND, once more")
		return
	}
	s := &stay{Attachment: d.sandboxes.Attach(who), arrival: a, sockets: sockets}
	d.Gate.Attachments.Begin(s.Attachment.ID, &s.tally)
	note, err := d.begun(s)
	if err != nil {
		d.Complain(fmt.Errorf("record the start of a sandbox: %w", err))
		d.dismiss(s)
		sockets.Discard()
		a.Refuse(errors.New("the start cannot be recorded"), "free space for the audit log")
		return
	}
	d.serveStay(s)
	said := false
	if err = a.Accept(d.welcome(s)); err == nil {
		said = a.Wait()
	}
	d.endStay(s, note)
	if said {
		_ = a.Conclude(clippedCounts(s.tally.Counts())) // who is gone does not want to know
	}
}

// begun records that a network was handed in, and returns what to say at its end.
func (d *Daemon) begun(s *stay) (note string, err error) {
	v, o := s.arrival.Attacher, s.arrival.Request
	note = fmt.Sprintf("handed in (%s) by uid %d at %s", o.Mode, v.UID, v.Listener)
	process := &policy.Process{PID: s.arrival.PID}
	if known := sandbox.ProcessOf(s.arrival.PID, v.UID); known != nil {
		process = known
	}
	if err := d.Gate.Records.NoteSandbox(record.KindStart, s.Sandbox, process, note); err != nil {
		return "", err
	}
	for _, n := range o.Notes {
		if err := d.Gate.Records.NoteSandbox(record.KindStart, s.Sandbox, process, n); err != nil {
			return "", err
		}
	}
	return note, nil
}

// welcome is what somebody is told whose network was taken in.
func (d *Daemon) welcome(s *stay) attach.Answer {
	a := attach.Answer{Sandbox: s.Sandbox.Name, Policy: d.Gate.Digest()}
	if ca := d.stays.ca.Load(); ca != nil {
		a.CA = string(*ca)
	}
	if s.arrival.Attacher.Host {
		a.File, _ = filepath.Abs(d.Path) // where that is not to be had, no file is
	}
	return a
}

// serveStay serves the sockets of an attached network like those of a jail, until they are closed. The sandbox can
// break its sockets, so an error of a socket is not reported as an error of egressd.
func (d *Daemon) serveStay(s *stay) {
	name, programs := s.Listener(), s.sockets.Programs
	d.stays.setPrograms(name, programs)
	how := proxy.Original(proxy.OriginalLocal)
	if s.sockets.Redirected {
		how = proxy.OriginalNAT
	}
	for _, l := range s.sockets.TCP {
		s.serving.Go(func() { _ = d.Server.ServeGiven(l, name, how) })
	}
	if l := s.sockets.Proxy; l != nil {
		s.serving.Go(func() { _ = d.Server.ServeGiven(l, name, nil) })
	}
	s.names = &dns.Server{Gate: d.Gate, Limits: dns.ServerLimits{InFlight: askingOfStay}, Program: func(network string, from, to netip.AddrPort) *policy.Process {
		if network == "tcp" {
			return programs.Connected(from, to)
		}
		return programs.Sent(from)
	}}
	for _, c := range s.sockets.DNS {
		s.serving.Go(func() { _ = s.names.ServeUDP(c, name) })
	}
	for _, l := range s.sockets.DNSStreams {
		s.serving.Go(func() { _ = s.names.ServeTCP(l, name) })
	}
	for _, datagrams := range s.sockets.UDP {
		s.serving.Go(func() { RefuseDatagrams(d.Gate, name, programs, datagrams) })
	}
}

// endStay has nothing of a network pass any more, and records the end.
func (d *Daemon) endStay(s *stay, note string) {
	s.sockets.Drain()
	done := s.sockets.Release()
	s.names.Shutdown()
	s.sockets.Close()
	s.serving.Wait()
	done()
	s.sockets.Programs.Close()
	d.awaitFlows(s, d.stays.drain.Load())
	d.dismiss(s)
	if err := d.Gate.Records.NoteSandbox(record.KindStop, s.Sandbox, &policy.Process{PID: s.arrival.PID}, "left: was "+note); err != nil {
		d.Complain(fmt.Errorf("record the end of a sandbox: %w", err))
	}
}

// dismiss forgets a stay, and cuts what is left of it.
func (d *Daemon) dismiss(s *stay) {
	d.sandboxes.Detach(s.Attachment)
	d.Gate.Attachments.Cut(s.Attachment.ID)
	closing, cancel := context.WithTimeout(context.Background(), cutPatience)
	defer cancel()
	d.awaitFlows(s, &closing) // so that they are counted, and recorded before the end is
	d.Gate.Attachments.Drop(s.Attachment.ID)
	d.stays.setPrograms(s.Listener(), nil)
}

const (
	cutPatience = 2 * time.Second
	flowsLooks  = 5 * time.Millisecond
)

// awaitFlows waits until a stay has no connections, or ctx, which may be nil, is
// done.
func (d *Daemon) awaitFlows(s *stay, ctx *context.Context) {
	for ctx != nil && (*ctx).Err() == nil && d.Gate.Attachments.Flows(s.Attachment.ID) > 0 {
		time.Sleep(flowsLooks)
	}
}

// deniedShown is how many hosts of a tally are told.
const deniedShown = 200

// clippedCounts is a tally that an answer has room for.
func clippedCounts(c egress.Counts) egress.Counts {
	if len(c.Denied) <= deniedShown {
		return c
	}
	rest := egress.DeniedHost{Host: "others"}
	for _, h := range c.Denied[deniedShown:] {
		rest.Times += cmp.Or(h.Times, 1)
	}
	c.Denied = append(c.Denied[:deniedShown:deniedShown], rest)
	return c
}
