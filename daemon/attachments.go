//go:build linux

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

	"github.com/egressd/egressd/certs"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/credentials"
	"github.com/egressd/egressd/dns"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy"
	"github.com/egressd/egressd/proxy/inspect"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/attach"
	"github.com/egressd/egressd/sandbox/capture"
	"github.com/egressd/egressd/sandbox/foreign"
)

// Limits of attached networks at a time. An attachment can make some threads of this process block, by sockets that its owner
// switches to blocking; the Go runtime ends a process with ten thousand threads. A sandbox may attach another
// network only while it has fewer than are free.
const (
	attachmentsMost      = 96
	attachmentsOfSandbox = 32
	askingOfAttachment   = 64 // questions for names under way
)

// attachments are the networks that sandboxes have attached, and the sockets where they do. Methods can be called from several
// goroutines.
type attachments struct {
	gate      *egress.Gate
	server    *proxy.Server
	sandboxes *sandbox.Directory
	path      string // of the policy file
	complain  func(error)
	judge     func(pid int) error // of the container that a process is in

	listeners []*attachListener
	ca        atomic.Pointer[[]byte]          // PEM of what sandboxes have to trust, or nil
	config    atomic.Pointer[config.Config]   // in force
	denials   func() *certs.Authority         // of answers to denied HTTPS where nothing is inspected, or nil; made once
	drain     atomic.Pointer[context.Context] // how long connections have when the daemon stops

	mu        sync.Mutex // guards what follows
	of        map[string]int
	networks  map[uint64]string // whose each is, by the kernel's number
	programs  map[string]*sandbox.Programs
	trusting  map[string]bool                             // listeners whose programs trust the authority of answerDenials
	variables func(sandbox string) []credentials.Variable // that programs in a network need
}

// trust notes what sandboxes have to trust.
func (a *attachments) trust(with *inspect.Inspection, c *config.Config) {
	a.config.Store(c)
	if with == nil {
		a.ca.Store(nil)
		return
	}
	pem := with.Authority.PEM()
	a.ca.Store(&pem)
}

// answerDenials has denied HTTPS of attached networks answered with the reason, as egressd run does, by an authority that is
// kept in memory alone. It signs nothing but denials. It returns nil if there can be none.
func (a *attachments) answerDenials() *certs.Authority {
	ca, err := certs.Ephemeral()
	if err != nil {
		a.complain(err)
		return nil
	}
	never := func(host string, port uint16) bool { return a.config.Load().NeverInspected(host, port) }
	a.server.AnswerDenials(&inspect.Denials{Authority: ca, Never: never, Of: a.isTrusting})
	return ca
}

// program finds the program behind a captured connection of an attached network.
func (a *attachments) program(listener string, from, to netip.AddrPort) *policy.Process {
	a.mu.Lock()
	p := a.programs[listener]
	a.mu.Unlock()
	return p.Connected(from, to)
}

// reserve makes room for a network, which nobody has yet.
func (a *attachments) reserve(name string, network uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of, a.networks, a.programs = map[string]int{}, map[uint64]string{}, map[string]*sandbox.Programs{}
	}
	switch {
	case a.networks[network] != "":
		return errors.New("this network is attached already")
	case len(a.networks) >= attachmentsMost:
		return fmt.Errorf("%d networks are attached, and that is the most", attachmentsMost)
	case a.of[name] >= min(attachmentsOfSandbox, attachmentsMost-len(a.networks)):
		return fmt.Errorf("%d networks of this sandbox are attached, and %d of %d in all: no more than %d, nor than are left", a.of[name], len(a.networks), attachmentsMost, attachmentsOfSandbox)
	}
	a.networks[network] = name
	a.of[name]++
	return nil
}

// has reports whether a sandbox of that name has a network attached.
func (a *attachments) has(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[name] > 0
}

// giveBack undoes reserve, and reports whether it was the last of its sandbox.
func (a *attachments) giveBack(name string, network uint64) (last bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.networks, network)
	if a.of[name]--; a.of[name] == 0 {
		delete(a.of, name)
		return true
	}
	return false
}

func (a *attachments) setPrograms(listener string, p *sandbox.Programs) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p == nil {
		delete(a.programs, listener)
	} else {
		a.programs[listener] = p
	}
}

func (a *attachments) setTrusting(listener string, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !on {
		delete(a.trusting, listener)
		return
	}
	if a.trusting == nil {
		a.trusting = map[string]bool{}
	}
	a.trusting[listener] = true
}

func (a *attachments) isTrusting(listener string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.trusting[listener]
}

// An attached is one attached network, and what serves it.
type attached struct {
	*sandbox.Attachment
	conn    *attach.Conn
	sockets *capture.Sockets
	names   *dns.Server
	tally   egress.Tally
	serving sync.WaitGroup
}

// serve serves the network that c hands over, and returns when its owner has left.
func (a *attachments) serve(c *attach.Conn) {
	c.FindContainer(a.sandboxes.Behind)
	who, err := a.sandboxes.IdentifyAttacher(c.Attacher)
	if err != nil {
		a.refuse(c.Attacher, nil, err)
		c.Refuse(err, nobodyAttaches)
		return
	}
	unread := ""
	if err := a.judge(c.PID); err != nil {
		var refused *unheldContainer
		if errors.As(err, &refused) {
			r := a.gate.RefuseContainer(who, refused.RefusedContainer, fmt.Sprintf("its network was handed in by uid %d at %s", c.Attacher.UID, c.Attacher.Listener))
			c.Refuse(err, refused.instead+"; egressd why "+r.ID.String())
			return
		}
		unread = "its container was not looked at: " + err.Error() // egressd's user need not be allowed to ask the engine
	}
	if err := a.reserve(who.Name, c.Network); err != nil {
		a.refuse(c.Attacher, nil, err)
		c.Refuse(err, "end what it was attached for, then try again")
		return
	}
	defer func() {
		if last := a.giveBack(who.Name, c.Network); last && !a.sandboxes.Listed(who.Name) {
			a.gate.Names.Forget(who.Name)
		}
	}()
	sockets, err := c.Sockets()
	if err != nil {
		a.complain(err)
		c.Refuse(errors.New("the sockets could not be taken"), "egressd enter -- COMMAND, once more")
		return
	}
	if unread != "" {
		c.Request.Notes = append(c.Request.Notes, unread)
	}
	s := &attached{Attachment: a.sandboxes.Attach(who), conn: c, sockets: sockets}
	a.gate.Attachments.Begin(s.Attachment.ID, &s.tally)
	note, err := a.recordStart(s)
	if err != nil {
		a.complain(fmt.Errorf("record the start of a sandbox: %w", err))
		a.forget(s)
		sockets.Discard()
		c.Refuse(errors.New("the start cannot be recorded"), "free space for the audit log")
		return
	}
	a.begin(s)
	said := false
	if err = c.Accept(a.answer(s)); err == nil {
		said = c.Wait()
	}
	a.end(s, note)
	if said {
		_ = c.Conclude(clippedCounts(s.tally.Counts())) // who is gone does not want to know
	}
}

// recordStart records that a network was attached, and returns what to say at its end.
func (a *attachments) recordStart(s *attached) (note string, err error) {
	v, o := s.conn.Attacher, s.conn.Request
	note = fmt.Sprintf("attached (%s) by uid %d at %s", o.Mode, v.UID, v.Listener)
	process := &policy.Process{PID: s.conn.PID}
	if known := sandbox.ProcessOf(s.conn.PID, v.UID); known != nil {
		process = known
	}
	if err := a.gate.Records.NoteSandbox(record.KindStart, s.Sandbox, process, note); err != nil {
		return "", err
	}
	for _, n := range o.Notes {
		if err := a.gate.Records.NoteSandbox(record.KindStart, s.Sandbox, process, n); err != nil {
			return "", err
		}
	}
	return note, nil
}

// answer returns what the owner of a network is told.
func (a *attachments) answer(s *attached) attach.Answer {
	said := attach.Answer{Sandbox: s.Sandbox.Name, Policy: a.gate.Digest()}
	if ca := a.ca.Load(); ca != nil {
		said.CA = string(*ca)
	} else if o := s.conn.Request; o.Kind != attach.KindAttach || o.Trusts {
		if own := a.denials(); own != nil {
			said.CA = string(own.PEM())
			a.setTrusting(s.Listener(), true)
		}
	}
	for _, v := range a.variables(s.Sandbox.Name) {
		if said.Variables == nil {
			said.Variables = map[string]string{}
		}
		said.Variables[v.Name] = v.Value
	}
	if s.conn.Attacher.Host {
		said.File, _ = filepath.Abs(a.path) // where that is not to be had, no file is
		m := a.gate.DenyMessages()
		said.DenyMessage = cmp.Or(m.User, m.Organisation)
	}
	return said
}

// begin serves the sockets of an attached network like those of a jail, until they are closed. The sandbox can
// break its sockets, so an error of a socket is not reported as an error of egressd.
func (a *attachments) begin(s *attached) {
	name, programs := s.Listener(), s.sockets.Programs
	a.setPrograms(name, programs)
	how := proxy.Original(proxy.OriginalLocal)
	if s.sockets.Redirected {
		how = proxy.OriginalNAT
	}
	for _, l := range s.sockets.TCP {
		s.serving.Go(func() { _ = a.server.ServeTransparent(foreign.Listener{Listener: l}, name, how) })
	}
	if l := s.sockets.Proxy; l != nil {
		s.serving.Go(func() { _ = a.server.Serve(foreign.Listener{Listener: l}, name) })
	}
	s.names = &dns.Server{Gate: a.gate, Placeholders: true, Limits: dns.Limits{InFlight: askingOfAttachment}, Program: func(network string, from, to netip.AddrPort) *policy.Process {
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
		s.serving.Go(func() { RefuseDatagrams(a.gate, name, programs, datagrams) })
	}
}

// end closes what serves a network, and records the end.
func (a *attachments) end(s *attached, note string) {
	s.sockets.Drain()
	done := s.sockets.Release()
	s.names.Shutdown()
	s.sockets.Close()
	s.serving.Wait()
	done()
	s.sockets.Programs.Close()
	a.awaitFlows(s, a.drain.Load())
	a.forget(s)
	if err := a.gate.Records.NoteSandbox(record.KindStop, s.Sandbox, &policy.Process{PID: s.conn.PID}, "left: was "+note); err != nil {
		a.complain(fmt.Errorf("record the end of a sandbox: %w", err))
	}
}

// forget cuts what is left of a network, and forgets it.
func (a *attachments) forget(s *attached) {
	a.sandboxes.Detach(s.Attachment)
	a.gate.Attachments.Cut(s.Attachment.ID)
	closing, cancel := context.WithTimeout(context.Background(), cutPatience)
	defer cancel()
	a.awaitFlows(s, &closing) // so that they are counted, and recorded before the end is
	a.gate.Attachments.Drop(s.Attachment.ID)
	a.gate.Approvals.RunEnded(&s.Sandbox)
	a.setPrograms(s.Listener(), nil)
	a.setTrusting(s.Listener(), false)
}

const (
	cutPatience = 2 * time.Second
	flowsLooks  = 5 * time.Millisecond
)

// awaitFlows waits until a network has no connections, or ctx, which may be nil, is
// done.
func (a *attachments) awaitFlows(s *attached, ctx *context.Context) {
	for ctx != nil && (*ctx).Err() == nil && a.gate.Attachments.Flows(s.Attachment.ID) > 0 {
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
