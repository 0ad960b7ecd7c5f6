//go:build linux

// Package attach moves a sandbox's network to the daemon. The client, which runs in that network or has made
// it, sends the network's sockets over a Unix socket (SCM_RIGHTS); the daemon serves them until the client's
// process ends.
//
//	network, err := attach.Prepare(addresses)              // the client
//	client, err := attach.Dial("/run/egressd/enter.sock")
//	attached, err := network.Attach(client, "web")
//
//	server := &attach.Server{Handle: …, Refused: …}        // the daemon
//	err := server.Serve(listener)
package attach

import (
	"net"
	"os"
	"sync"
	"time"

	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/foreign"
)

// A Server takes in networks. A client sends the sockets of a network, and from then on the connections and
// datagrams of that network arrive at this process. The client is the adversary; a Server offers clients
// nothing else.
//
// The client may keep the sockets that it sends, read from them, and switch them to blocking. See
// [capture.Sockets.Release].
type Server struct {
	Name string // that the configuration gives it

	// Handle is called with each valid request, on a goroutine of its own, and answers the request. Refused
	// reports an invalid request, with the first bytes of the message.
	Handle  func(*Conn)
	Refused func(v sandbox.Attacher, raw []byte, why error)

	// Told is called when a client in the daemon's own network has refused a container. It returns the ID of the record. Without
	// Told, such clients are refused.
	Told func(sandbox.Attacher, *sandbox.RefusedContainer) (id string, err error)

	// Forbids returns why a client may attach nothing, judged by what the kernel says of the client, and what to
	// type next. A forbidden client does not count against the waiting clients. Forbids may be nil.
	Forbids func(sandbox.Attacher) (hint string, why error)

	mu       sync.Mutex // guards what follows
	waiting  map[clientKey]int
	listener *net.UnixListener
	open     map[*Conn]struct{}
	closed   bool
	serving  sync.WaitGroup
	closing  foreign.Closings
}

const (
	patience     = 2 * time.Second // for the request, and for the client to read the answer
	waitingMost  = 16              // clients without an answer
	waitingOfOne = 4               // of one user
)

// A clientKey is what waiting clients are counted by. The host's own clients count apart from those of a
// sandbox that runs as the same user.
type clientKey struct {
	uid  uint32
	host bool
}

// Serve serves clients until Close. It closes l.
func (d *Server) Serve(l *net.UnixListener) error {
	defer d.opens(l)()
	defer func() { d.closing.Begin(foreign.CloseListener(l)) }()
	for {
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
			d.admit(c)
		case d.isClosed():
			return net.ErrClosed
		default:
			time.Sleep(100 * time.Millisecond) // too many descriptors; waiting connections stay in the queue of the kernel
		}
	}
}

// opens notes that l is served, until done is called. On a closed Server it shuts l.
func (d *Server) opens(l *net.UnixListener) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listener = l
	d.waiting, d.open = map[clientKey]int{}, map[*Conn]struct{}{}
	if d.closed {
		foreign.Shut(l)
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

// Close ends Serve and interrupts every attachment. It waits for the handlers, and for a limited time until the
// descriptors of clients are closed.
func (d *Server) Close() {
	d.mu.Lock()
	d.closed = true
	if d.listener != nil {
		foreign.Shut(d.listener)
	}
	for a := range d.open {
		a.interrupt()
	}
	d.mu.Unlock()
	d.closing.Hurry()
	d.serving.Wait()
	d.closing.Wait(patience)
}

// admit starts a goroutine for a client, unless too many clients wait.
func (d *Server) admit(c *net.UnixConn) {
	v, err := attacherAt(c)
	v.Listener = d.Name
	who := clientKey{v.UID, v.Host}
	if err == nil && d.forbids(c, v) {
		return
	}
	if err != nil || !d.admits(who) {
		d.closing.Begin(func() { foreign.CloseConn(c) }) // the client may try again
		return
	}
	go func() {
		answered := sync.OnceFunc(func() { d.answered(who) })
		a := d.receive(c, v, answered)
		d.closing.Begin(func() {
			defer answered()
			a.release()
		})
		d.serving.Done()
	}()
}

// forbids refuses and disconnects a client that [Server.Forbids] rejects.
func (d *Server) forbids(c *net.UnixConn, v sandbox.Attacher) bool {
	if d.Forbids == nil {
		return false
	}
	hint, why := d.Forbids(v)
	if why == nil {
		return false
	}
	d.Refused(v, nil, why)
	d.closing.Begin(func() {
		(&Conn{conn: c}).Refuse(why, hint)
		foreign.CloseConn(c)
	})
	return true
}

// admits counts a client among the waiting ones, if there is room.
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

// attacherAt returns what the kernel says of the client.
func attacherAt(c *net.UnixConn) (v sandbox.Attacher, err error) {
	p, err := sandbox.UnixPeerOf(c)
	return sandbox.Attacher{UID: p.UID, Network: p.Network, Host: p.Host && (p.UID == 0 || p.UID == uint32(os.Geteuid()))}, err
}

// receive reads a request, checks it, and calls Handle. The caller releases the returned Conn on a goroutine,
// because closing a client's descriptors may block.
func (d *Server) receive(c *net.UnixConn, v sandbox.Attacher, answered func()) *Conn {
	_ = c.SetDeadline(time.Now().Add(patience))
	text, fds, err := readRequest(c)
	a := &Conn{Attacher: v, server: d, conn: c, fds: fds}
	if len(text) == 0 && len(fds) == 0 {
		return a // the client only looked whether a daemon answers
	}
	if err == nil {
		err = a.check(text)
	}
	if err != nil {
		d.Refused(v, text[:min(len(text), 256)], err)
		a.Refuse(err, "egressd enter -- COMMAND, of the same version as the daemon (egressd version)")
		return a
	}
	if a.Request.Kind == KindRefused {
		a.tell()
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
