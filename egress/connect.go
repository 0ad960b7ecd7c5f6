package egress

import (
	"context"
	"net/netip"
	"syscall"

	"github.com/egressd/egressd/internal/relay"
)

// Connect is Dial for an event loop. It does not block, and calls done on the loop with a descriptor, which the caller then
// owns, or with a [*Refusal]. cancel is never nil, and ends the attempt without a call of done. Call it on the
// loop.
func (f *Flow) Connect(loop *relay.Loop, done func(fd int, err error)) (cancel func()) {
	c := &connecting{flow: f, loop: loop, done: done, to: f.decided()}
	c.timeout = loop.After(f.gate.config.DialTimeout, func() { c.end(nil, syscall.ETIMEDOUT) })
	c.next()
	return c.cancel
}

// connecting is the race of one flow's addresses on an event loop.
type connecting struct {
	flow    *Flow
	loop    *relay.Loop
	done    func(int, error)
	to      []netip.AddrPort // not tried yet
	open    []*attempt
	timeout *relay.Timer
	start   *relay.Timer
	last    error
	looking bool // whether the policy in force lets the flow go on, on a goroutine
	over    bool
}

type attempt struct {
	race *connecting
	fd   int
	to   netip.AddrPort
}

// next tries one more address, and has the one after it tried a little later.
func (c *connecting) next() {
	c.loop.Stop(c.start)
	c.start = nil
	for !c.over && len(c.to) > 0 {
		if !c.mayGoOn() {
			return
		}
		to := c.to[0]
		c.to = c.to[1:]
		a, err := c.begin(to)
		if err != nil {
			c.last = err
			continue
		}
		if c.open = append(c.open, a); len(c.open) > attemptsMost {
			relay.Reset(c.open[0].fd)
			c.loop.CloseFD(c.open[0].fd)
			c.open = c.open[1:]
		}
		if len(c.to) > 0 {
			c.start = c.loop.After(attemptDelay, c.next)
		}
		return
	}
	if !c.over && len(c.open) == 0 {
		c.end(nil, c.last)
	}
}

// mayGoOn reports whether the policy in force lets the flow go on. Where that takes time,
// next is called again when it is known.
func (c *connecting) mayGoOn() bool {
	if c.looking {
		return false
	}
	refusal, wait := c.flow.currentNow()
	switch {
	case wait:
		c.looking = true
		c.flow.gate.tasks.start(func() {
			c.flow.current(context.Background()) // next asks what came of it
			c.loop.Post(func() {
				c.looking = false
				c.next()
			})
		})
	case refusal != nil:
		c.refuse(refusal)
	}
	return !wait && refusal == nil
}

// refuse is end where nothing may be dialled any more.
func (c *connecting) refuse(refusal *Refusal) {
	c.clear(nil)
	c.done(-1, refusal)
}

func (c *connecting) begin(to netip.AddrPort) (*attempt, error) {
	family, sa := sockaddr(to)
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	a := &attempt{race: c, fd: fd, to: to}
	if err := a.connect(sa); err != nil {
		c.loop.CloseFD(fd)
		return nil, err
	}
	return a, nil
}

func (a *attempt) connect(sa syscall.Sockaddr) error {
	syscall.SetsockoptInt(a.fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	if !a.race.flow.leadsTo(a.to) {
		return errNotJudged
	}
	if refusal, wait := a.race.flow.currentNow(); refusal != nil || wait { // next has asked, too, and waited
		return errRefused
	}
	if err := a.race.flow.mayConnect(a.to); err != nil {
		return err
	}
	if err := syscall.Connect(a.fd, sa); err != nil && err != syscall.EINPROGRESS {
		return err
	}
	return a.race.loop.Watch(a.fd, a)
}

// Ready is told when the connection stands or has failed.
func (a *attempt) Ready(e relay.Events) {
	if !e.Writable() {
		return
	}
	if e.Broken() {
		if err := a.why(); err != nil {
			a.race.failed(a, err)
			return
		}
	}
	a.race.end(a, nil)
}

// why returns the error of an attempt after an event, or nil if it is connected.
func (a *attempt) why() error {
	code, err := syscall.GetsockoptInt(a.fd, syscall.SOL_SOCKET, syscall.SO_ERROR)
	if err == nil && code != 0 {
		err = syscall.Errno(code)
	}
	return err
}

func (c *connecting) failed(a *attempt, err error) {
	c.loop.CloseFD(a.fd)
	c.last = err
	for i, other := range c.open {
		if other == a {
			c.open = append(c.open[:i], c.open[i+1:]...)
			break
		}
	}
	c.next()
}

// end closes what lost the race and tells the caller.
func (c *connecting) end(won *attempt, err error) {
	if c.over {
		return
	}
	c.clear(won)
	if won == nil {
		c.done(-1, c.flow.dialError(err))
		return
	}
	c.flow.mu.Lock()
	c.flow.dialled = endpointOf(won.to)
	c.flow.mu.Unlock()
	c.flow.connected()
	c.done(won.fd, nil)
}

func (c *connecting) cancel() {
	if !c.over {
		c.clear(nil)
	}
}

// clear ends the race and closes everything but won, to which nothing was said.
func (c *connecting) clear(won *attempt) {
	c.over = true
	c.loop.Stop(c.timeout)
	c.loop.Stop(c.start)
	for _, a := range c.open {
		if a != won {
			relay.Reset(a.fd)
			c.loop.CloseFD(a.fd)
		}
	}
	c.open = nil
}

func sockaddr(to netip.AddrPort) (family int, sa syscall.Sockaddr) {
	if to.Addr().Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}
