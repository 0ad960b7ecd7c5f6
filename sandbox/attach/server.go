package attach

import (
	"net"
	"os"
	"sync"
	"time"

	"github.com/egressd/egressd/sandbox"
)

// A Server takes networks in: at its socket somebody hands over the sockets of one,
// and all that is sent there arrives at this process from then on. Who does so is the
// adversary. Whoever reaches a door can do nothing else by it.
//
// What was handed over is not this process's alone: who made the sockets may have them still,
// read from them, and make them block. See [Sockets.Release].
type Server struct {
	Name string // that the configuration gives it

	// Take is called for each offer that is in order, on a goroutine of its own, and
	// answers it. Refused is told of what is not in order, with the first bytes
	// that were sent, if any were.
	Handle  func(*Conn)
	Refused func(v sandbox.Attacher, raw []byte, why error)

	// Enters says why a visitor of whom nothing is known but what the kernel says can hand
	// in nothing, and what to type next, or nil: such a visitor takes no place of those who
	// wait. It may be nil.
	Forbids func(sandbox.Attacher) (hint string, why error)

	mu       sync.Mutex // guards what follows
	waiting  map[clientKey]int
	listener *net.UnixListener
	open     map[*Conn]struct{}
	closed   bool
	serving  sync.WaitGroup
	closing  closings
}

const (
	patience     = 2 * time.Second // for the offer, and for the answer to be taken
	waitingMost  = 16              // visitors without an answer, at a time
	waitingOfOne = 4               // of one user
	closingMost  = 64              // visitors that are seen off, at a time
)

// A clientKey is who visitors are counted by. The host's own are not to wait for a sandbox
// that has their user's number.
type clientKey struct {
	uid  uint32
	host bool
}

// Serve takes visitors until Close. It closes l.
func (d *Server) Serve(l *net.UnixListener) error {
	defer d.opens(l)()
	defer d.closing.begin(func() { closeListener(l) })
	for {
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
			d.admit(c)
		case d.isClosed():
			return net.ErrClosed
		default:
			time.Sleep(100 * time.Millisecond) // too many descriptors; who waits in the kernel stays there
		}
	}
}

// opens has l be served until done is called. Where d is closed already, there is nothing to
// do but to see off those who wait.
func (d *Server) opens(l *net.UnixListener) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listener = l
	d.waiting, d.open = map[clientKey]int{}, map[*Conn]struct{}{}
	if d.closed {
		shut(l)
		return func() {}
	}
	d.serving.Add(1)
	return d.serving.Done
}

func (d *Server) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// Close ends Serve, and has every arrival end. It waits until they are done with, and,
// for a moment, until what they have brought is closed.
func (d *Server) Close() {
	d.mu.Lock()
	d.closed = true
	if d.listener != nil {
		shut(d.listener)
	}
	for a := range d.open {
		a.interrupt()
	}
	d.mu.Unlock()
	d.closing.hurry()
	d.serving.Wait()
	d.closing.wait(patience)
}

// admit has a visitor seen to, unless too many wait.
func (d *Server) admit(c *net.UnixConn) {
	v, err := attacherAt(c)
	v.Listener = d.Name
	who := clientKey{v.UID, v.Host}
	if err == nil && d.forbids(c, v) {
		return
	}
	if err != nil || !d.admits(who) {
		d.closing.begin(func() { closeConn(c) }) // it may come again
		return
	}
	go func() {
		answered := sync.OnceFunc(func() { d.answered(who) })
		a := d.receive(c, v, answered)
		d.closing.begin(func() {
			defer answered()
			a.release()
		})
		d.serving.Done()
	}()
}

// forbids sees off a visitor who cannot enter, whatever is handed in, and reports
// whether it is one.
func (d *Server) forbids(c *net.UnixConn, v sandbox.Attacher) bool {
	if d.Forbids == nil {
		return false
	}
	hint, why := d.Forbids(v)
	if why == nil {
		return false
	}
	d.Refused(v, nil, why)
	d.closing.begin(func() {
		(&Conn{conn: c}).Refuse(why, hint)
		closeConn(c)
	})
	return true
}

// enters counts a visitor, where there is room for one more.
func (d *Server) admits(who clientKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := 0
	for other, n := range d.waiting {
		if other.host == who.host {
			all += n
		}
	}
	if d.closed || all >= waitingMost || d.waiting[who] >= waitingOfOne {
		return false
	}
	d.waiting[who]++
	d.serving.Add(1)
	return true
}

func (d *Server) answered(who clientKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting[who]--; d.waiting[who] == 0 {
		delete(d.waiting, who)
	}
}

// attacherAt says who is at the other end.
func attacherAt(c *net.UnixConn) (v sandbox.Attacher, err error) {
	p, err := sandbox.UnixPeerOf(c)
	return sandbox.Attacher{UID: p.UID, Network: p.Network, Host: p.Host && (p.UID == 0 || p.UID == uint32(os.Geteuid()))}, err
}

// receive reads an offer, checks it, and has it taken. What it returns is what is left
// of it, which the caller has released where it may take long.
func (d *Server) receive(c *net.UnixConn, v sandbox.Attacher, answered func()) *Conn {
	_ = c.SetDeadline(time.Now().Add(patience))
	text, fds, err := readRequest(c)
	a := &Conn{Attacher: v, server: d, conn: c, fds: fds}
	if len(text) == 0 && len(fds) == 0 {
		return a // it has looked whether somebody is here
	}
	if err == nil {
		err = a.check(text)
	}
	if err != nil {
		d.Refused(v, text[:min(len(text), 256)], err)
		a.Refuse(err, "egressd enter -- COMMAND, of the same version as the daemon (egressd version)")
		return a
	}
	a.Attacher.Name = a.Request.Sandbox
	if !d.keep(a) {
		return a
	}
	defer d.forget(a)
	a.answered = answered
	d.Handle(a)
	return a
}

func (d *Server) keep(a *Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.open[a] = struct{}{}
	}
	return !d.closed
}

func (d *Server) forget(a *Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, a)
}
