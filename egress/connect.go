package egress

import (
	"context"
	"net/netip"
	"slices"
	"syscall"

	"github.com/egressd/egressd/internal/relay"
)

// Connect is Dial for an event loop. Connect does not block. It calls done on the loop, with a descriptor that the
// caller then owns or with a [*Refusal]. cancel is never nil, and ends the attempt without a call of done. Call it on the
// loop.
//
// The loop itself connects to a single address. Several addresses are left to the race of Dial, and so is an upstream
// proxy.
func (f *dialling) Connect(loop *relay.Loop, done func(fd int, err error)) (cancel func()) {
	to := f.decided()
	if len(to) != 1 || f.gate.Route.proxy.Load() != nil {
		return f.dialBeside(loop, done)
	}
	c := &connecting{flow: f, loop: loop, done: done, to: to[0], fd: -1}
	c.timeout = loop.After(f.gate.config.DialTimeout, func() { c.fail(f.dialError(syscall.ETIMEDOUT)) })
	c.begin()
	return c.cancel
}

// decided returns what may be dialled, in the order to try.
func (f *attempt) decided() []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	dst := &f.request.Destination
	if dst.Addr.IsValid() {
		return []netip.AddrPort{netip.AddrPortFrom(dst.Addr, dst.Port)}
	}
	decided := make([]netip.AddrPort, len(dst.Addrs))
	for i, a := range dst.Addrs {
		decided[i] = netip.AddrPortFrom(a, dst.Port)
	}
	return decided
}

// leadsTo reports whether the address is one of those that were decided. No address stands for the name itself, which
// an upstream proxy resolves.
func (f *attempt) leadsTo(to netip.AddrPort) bool {
	if !to.IsValid() {
		return len(f.decided()) == 0
	}
	return slices.Contains(f.decided(), netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
}

// judged checks the address once more right before connect(2): it must be a decided one.
func (f *dialling) judged(to netip.AddrPort) error {
	if !f.leadsTo(to) {
		return errNotJudged
	}
	if f.current(context.Background()) != nil {
		return errRefused
	}
	return nil
}

// dialBeside is Connect by a goroutine.
func (f *dialling) dialBeside(loop *relay.Loop, done func(fd int, err error)) (cancel func()) {
	ctx, giveUp := context.WithCancel(context.Background())
	over := false // on the loop
	f.gate.tasks.start(func() {
		defer giveUp()
		fd := -1
		l, err := f.dial(ctx)
		if err == nil {
			if fd, err = relay.Duplicate(l.conn); err != nil {
				err = f.dialError(err)
			}
			l.conn.Close() // the descriptor stays
		}
		landed := loop.Post(func() {
			switch {
			case over && fd >= 0:
				loop.CloseFD(fd)
			case !over && err == nil:
				f.arrived(endpointOf(l.to))
				fallthrough
			case !over:
				done(fd, err)
			}
		})
		if !landed && fd >= 0 {
			syscall.Close(fd)
		}
	})
	return func() {
		over = true
		giveUp()
	}
}

// arrived notes where a connection leads that the flow does not hold.
func (f *dialling) arrived(at endpoint) {
	f.mu.Lock()
	f.dialled = at
	f.mu.Unlock()
	f.gate.Records.connected(f.took())
}

// connecting is one attempt to connect, on an event loop.
type connecting struct {
	flow    *dialling
	loop    *relay.Loop
	done    func(int, error)
	to      netip.AddrPort
	fd      int // -1: none
	timeout *relay.Timer
	over    bool
}

// begin connects, unless the policy in force refuses it by now. If the policy takes its time, begin is called again
// when the answer is known.
func (c *connecting) begin() {
	if c.over {
		return
	}
	refusal, wait := c.flow.currentNow()
	switch {
	case wait:
		c.flow.gate.tasks.start(func() {
			c.flow.current(context.Background()) // begin asks for the outcome
			c.loop.Post(c.begin)
		})
	case refusal != nil:
		c.fail(refusal)
	default:
		if err := c.connect(); err != nil {
			c.fail(c.flow.dialError(err))
		}
	}
}

func (c *connecting) connect() error {
	family, sa := sockaddr(c.to)
	fd, err := relay.Socket(family)
	if err != nil {
		return err
	}
	c.fd = fd
	syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	if !c.flow.leadsTo(c.to) {
		return errNotJudged
	}
	if refusal, wait := c.flow.currentNow(); refusal != nil || wait { // begin has asked, too, and waited
		return errRefused
	}
	if err := c.flow.mayConnect(c.to); err != nil {
		return err
	}
	if err := syscall.Connect(fd, sa); err != nil && err != syscall.EINPROGRESS {
		return err
	}
	return c.loop.Watch(fd, c)
}

// Ready is called when the connection stands or has failed.
func (c *connecting) Ready(e relay.Events) {
	if !e.Writable() {
		return
	}
	if e.Broken() {
		if err := c.why(); err != nil {
			c.fail(c.flow.dialError(err))
			return
		}
	}
	c.over = true
	c.loop.Stop(c.timeout)
	c.flow.arrived(endpointOf(c.to))
	c.done(c.fd, nil)
}

// why returns the error of the attempt after an event, or nil if it is connected.
func (c *connecting) why() error {
	code, err := syscall.GetsockoptInt(c.fd, syscall.SOL_SOCKET, syscall.SO_ERROR)
	if err == nil && code != 0 {
		err = syscall.Errno(code)
	}
	return err
}

// fail ends the attempt with a refusal, and tells the caller.
func (c *connecting) fail(refusal *Refusal) {
	c.cancel()
	c.done(-1, refusal)
}

func (c *connecting) cancel() {
	if c.over {
		return
	}
	c.over = true
	c.loop.Stop(c.timeout)
	if c.fd >= 0 {
		relay.Reset(c.fd)
		c.loop.CloseFD(c.fd)
	}
}

func sockaddr(to netip.AddrPort) (family int, sa syscall.Sockaddr) {
	if to.Addr().Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}

// An endpoint is an address and a port without a zone, in little more than half
// the room of a [netip.AddrPort]. The zero value is none.
type endpoint struct {
	addr [16]byte // IPv4 as IPv4-mapped
	port uint16
}

// endpointOf returns a, unmapped, or the zero value where a is not valid.
func endpointOf(a netip.AddrPort) endpoint {
	if !a.IsValid() {
		return endpoint{}
	}
	return endpoint{a.Addr().As16(), a.Port()}
}

func (e endpoint) addrPort() netip.AddrPort {
	if e == (endpoint{}) {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16(e.addr).Unmap(), e.port)
}
