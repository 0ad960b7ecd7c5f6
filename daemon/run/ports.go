package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/capture"
)

// A publishedPort has connections to a port of the host's loopback go to one of
// the sandbox.
type publishedPort struct{ host, inside uint16 }

// parsePublished reads PORT or HOSTPORT:PORT; HOSTPORT 0 is any that is free. auto reports that autoPort is among texts.
func parsePublished(texts []string) (all []publishedPort, auto bool, err error) {
	for _, text := range texts {
		if text == autoPort {
			auto = true
			continue
		}
		host, inside, found := strings.Cut(text, ":")
		if !found {
			inside = host
		}
		p := publishedPort{inside: parsePort(inside)}
		if host != "0" {
			p.host = parsePort(host)
		}
		if p.inside == 0 || p.host == 0 && host != "0" {
			return nil, false, hint.Misused(fmt.Errorf("-p %s: it is auto, or PORT or HOSTPORT:PORT, each from 1 to 65535", text), "egressd run -p 8080:3000 -- COMMAND")
		}
		all = append(all, p)
	}
	return all, auto, nil
}

func parsePort(text string) uint16 {
	if n, err := strconv.ParseUint(text, 10, 16); err == nil && strconv.FormatUint(n, 10) == text {
		return uint16(n)
	}
	return 0
}

// parseHostPorts reads the ports of the host that the sandbox is to have.
func parseHostPorts(texts []string, published []publishedPort) (all []uint16, err error) {
	for _, text := range texts {
		port := parsePort(text)
		if port == 0 || port == capture.CapturePort || port == 53 {
			return nil, hint.Misused(fmt.Errorf("--host-port %s: it is a port from 2 to 65535, and not 53", text), "egressd run --host-port 5432 -- COMMAND")
		}
		for _, p := range published {
			if p.host == port || p.inside == port {
				return nil, hint.Misused(fmt.Errorf("--host-port %d and -p: the port would be the host's and the sandbox's at a time", port), fmt.Sprintf("egressd run -p 0:%d -- COMMAND, without --host-port, or another port", p.inside))
			}
		}
		all = append(all, port)
	}
	return all, nil
}

// allowHostPorts makes the ports that a flag gives to the sandbox rules of the file,
// so that they are decided and recorded as all else is.
func allowHostPorts(file *file.File, name string, ports []uint16) error {
	for _, port := range ports {
		for _, loopback := range loopbacks {
			pattern, err := policy.ParsePattern(netip.AddrPortFrom(loopback, port).String())
			if err != nil {
				return err
			}
			id := fmt.Sprintf("--host-port %d", port)
			if loopback.Is6() {
				id += " (IPv6)"
			}
			rule := policy.Rule{Pattern: pattern, ID: id, Reason: "the person who started the program asked for it", AnyProtocol: true}
			file.UnsafeAllow = append(file.UnsafeAllow, rule)
			for i := range file.Sandboxes {
				if s := &file.Sandboxes[i]; s.Name == name && s.Narrowed {
					s.Allow = append(s.Allow, rule)
				}
			}
		}
	}
	return nil
}

// loopbacks are where a server of the host listens, in the order in which they are tried.
var loopbacks = [...]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// ports are the TCP ports that lead from the host's loopback to the sandbox's (-p), and back (--host-port).
type ports struct {
	gate     *egress.Gate
	programs *sandbox.Programs
	dialers  *capture.Dialers
	notes    []string // what is to be recorded elsewhere
	serving  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	open    map[io.Closer]struct{}
	stopped bool
}

// publish listens on the host's loopback, and says where.
func (p *ports) publish(all []publishedPort, talk io.Writer) error {
	for _, one := range all {
		l, err := net.Listen("tcp4", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), one.host).String())
		if err != nil {
			return hint.Failed(fmt.Errorf("publish port %d of the sandbox: %w", one.inside, err), fmt.Sprintf("egressd run -p 0:%d -- COMMAND, for any port that is free", one.inside))
		}
		if err := p.tell(talk, fmt.Sprintf("%s leads to port %d of the sandbox", l.Addr(), one.inside)); err != nil {
			l.Close()
			return err
		}
		p.serve(l, func(c *net.TCPConn) { p.goInside(c, one.inside) })
	}
	return nil
}

func (p *ports) tell(talk io.Writer, what string) error {
	fmt.Fprintf(talk, "egressd: %s\n", what)
	if p.gate == nil { // another egressd records it
		p.notes = append(p.notes, what)
		return nil
	}
	if err := p.gate.Records.Note(record.KindStart, what); err != nil {
		return hint.Failed(fmt.Errorf("record a port: %w", err), "egressd log --run last")
	}
	return nil
}

// give serves connections of the sandbox to ports of the host.
func (p *ports) give(all map[uint16][]net.Listener, talk io.Writer) error {
	for port, listeners := range all {
		if err := p.tell(talk, fmt.Sprintf("127.0.0.1:%d of the sandbox leads to that of the host", port)); err != nil {
			return err
		}
		for _, l := range listeners {
			p.serve(l, func(c *net.TCPConn) { p.goOutside(c, port) })
		}
	}
	return nil
}

// serve accepts until stop.
func (p *ports) serve(l net.Listener, carry func(*net.TCPConn)) {
	if !p.keep(l) {
		return
	}
	p.serving.Go(func() {
		for {
			c, err := l.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				time.Sleep(100 * time.Millisecond) // too many descriptors; what waits in the kernel stays there
				continue
			}
			if tcp, ok := c.(*net.TCPConn); ok && p.keep(c) {
				p.serving.Go(func() {
					defer p.drop(c)
					carry(tcp)
				})
			}
		}
	})
}

// keep has c closed by stop. It closes c at once where that was called.
func (p *ports) keep(c io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		c.Close()
		return false
	}
	if p.open == nil {
		p.open = map[io.Closer]struct{}{}
	}
	p.open[c] = struct{}{}
	return true
}

func (p *ports) drop(c io.Closer) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// stop ends all connections, and waits until they are recorded.
func (p *ports) stop() {
	p.mu.Lock()
	p.stopped = true
	for c := range p.open {
		c.Close()
	}
	p.mu.Unlock()
	p.serving.Wait()
	if p.dialers != nil {
		p.dialers.Close()
	}
}

// insidePatience is how long a server in the sandbox has to take a connection.
const insidePatience = 5 * time.Second

// goInside carries a connection of somebody on the host to a server in the sandbox.
func (p *ports) goInside(c *net.TCPConn, port uint16) {
	inside, err := p.dialers.Dial(port, insidePatience)
	if err != nil {
		c.SetLinger(0) // as if nobody listened
		return
	}
	if !p.keep(inside) {
		return
	}
	defer p.drop(inside)
	_ = join(c, inside, nothing, nothing) // whose end it was is theirs to know
}

func nothing(int) error { return nil }

// goOutside carries a connection of the sandbox to a port of the host, if the policy lets it: at 127.0.0.1, or at ::1 if
// nobody listens there. Each is decided and recorded.
func (p *ports) goOutside(c *net.TCPConn, port uint16) {
	peer := sandbox.Peer{Addr: c.RemoteAddr().(*net.TCPAddr).AddrPort(), Listener: jailListener}
	peer.Process = p.programs.Connected(peer.Addr, c.LocalAddr().(*net.TCPAddr).AddrPort())
	for _, loopback := range loopbacks {
		if p.carryOutside(c, peer, policy.Destination{Host: loopback.String(), Addr: loopback, Port: port}) != policy.NetworkRefused {
			return
		}
	}
	c.SetLinger(0)
}

// carryOutside carries a connection to one address of the host, and returns why it could not.
func (p *ports) carryOutside(c *net.TCPConn, peer sandbox.Peer, to policy.Destination) (class policy.Class) {
	ctx := context.Background()
	flow, err := p.gate.Open(ctx, peer, policy.Request{Via: policy.ViaTransparent, Destination: to})
	if err != nil {
		c.SetLinger(0)
		return policy.Class(outcomeOf(err))
	}
	var sent, got int64
	outcome := record.OutcomeClosed
	defer func() { flow.Close(egress.End{Up: sent, Down: got, Outcome: outcome}) }()
	flow.OnCut(func() { c.Close() })
	up, err := p.reach(ctx, flow)
	if err != nil {
		if outcome = outcomeOf(err); outcome != record.Outcome(policy.NetworkRefused) {
			c.SetLinger(0)
		}
		return policy.Class(outcome)
	}
	meter := flow.Meter()
	err = join(c, up, func(n int) error {
		if most := flow.Budget(); most > 0 && sent+int64(n) > most {
			return flow.Exceeded()
		}
		sent += int64(n)
		meter.Up.Add(int64(n))
		return nil
	}, func(n int) error {
		got += int64(n)
		meter.Down.Add(int64(n))
		return nil
	})
	if err != nil {
		outcome = outcomeOf(err)
	}
	return ""
}

// reach connects to where flow goes. The bytes are nobody's to look at: whoever
// gave the port to the sandbox knows what is behind it.
func (p *ports) reach(ctx context.Context, flow *egress.Flow) (*net.TCPConn, error) {
	if err := flow.Narrow(ctx, func(r *policy.Request) { r.Protocol = policy.ProtocolOpaque }); err != nil {
		return nil, err
	}
	if flow.Inspected() {
		return nil, flow.Failed(policy.NotTLS, "the policy wants to look at what is sent to a port of the host, which cannot be looked at")
	}
	if err := flow.Wait(ctx); err != nil {
		return nil, err
	}
	up, err := flow.Dial(ctx)
	if err != nil {
		return nil, err
	}
	tcp, ok := up.(*net.TCPConn)
	if !ok {
		return nil, flow.Failed(policy.NetworkUnreachable, "")
	}
	return tcp, nil
}

func isInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

// outcomeOf is the outcome that an error stands for.
func outcomeOf(err error) record.Outcome {
	if refusal, ok := errors.AsType[*egress.Refusal](err); ok {
		return record.Outcome(refusal.Decision.Class)
	}
	return record.OutcomeReset
}

// A half is a connection whose two ways end one by one.
type half interface {
	net.Conn
	CloseWrite() error
	SetLinger(int) error
}

// join carries between two connections until both ways are over. forth and back are
// asked, one call at a time each, before bytes go on. The first error ends both ways.
func join(near, far half, forth, back func(int) error) error {
	failed := make(chan error, 2)
	go func() { failed <- carry(far, near, forth) }()
	go func() { failed <- carry(near, far, back) }()
	err := <-failed
	if err != nil {
		abandon(near, far)
	}
	return errors.Join(err, <-failed)
}

func abandon(ends ...half) {
	for _, c := range ends {
		c.SetLinger(0)
		c.SetDeadline(time.Now())
	}
}

func carry(to, from half, may func(int) error) error {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if err := may(n); err != nil {
				return err
			}
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if err := to.CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
				return err
			}
			return nil
		case err != nil:
			return err
		}
	}
}
