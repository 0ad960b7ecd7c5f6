package sandbox

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Door takes networks in: at its socket somebody hands over the sockets of one,
// and all that is sent there arrives at this process from then on. Who does so is the
// adversary. Whoever reaches a door can do nothing else by it.
//
// What was handed over is not this process's alone: who made the sockets may have them still,
// read from them, and make them block. See [Sockets.Release].
type Door struct {
	Name string // that the configuration gives it

	// Take is called for each offer that is in order, on a goroutine of its own, and
	// answers it. Refused is told of what is not in order, with the first bytes
	// that were sent, if any were.
	Take    func(*Arrival)
	Refused func(v Visitor, raw []byte, why error)

	// Enters says why a visitor of whom nothing is known but what the kernel says can hand
	// in nothing, and what to type next, or nil: such a visitor takes no place of those who
	// wait. It may be nil.
	Enters func(Visitor) (hint string, why error)

	mu       sync.Mutex // guards what follows
	waiting  map[guest]int
	listener *net.UnixListener
	open     map[*Arrival]struct{}
	closed   bool
	serving  sync.WaitGroup
	leaving  farewells
}

const (
	doorPatience = 2 * time.Second // for the offer, and for the answer to be taken
	waitingMost  = 16              // visitors without an answer, at a time
	waitingOfOne = 4               // of one user
	leavingMost  = 64              // visitors that are seen off, at a time
)

// A guest is who visitors are counted by. The host's own are not to wait for a sandbox
// that has their user's number.
type guest struct {
	uid  uint32
	host bool
}

// Serve takes visitors until Close. It closes l.
func (d *Door) Serve(l *net.UnixListener) error {
	defer d.opens(l)()
	defer d.leaving.begin(func() { seeOffAll(l) })
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
func (d *Door) opens(l *net.UnixListener) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listener = l
	d.waiting, d.open = map[guest]int{}, map[*Arrival]struct{}{}
	if d.closed {
		shut(l)
		return func() {}
	}
	d.serving.Add(1)
	return d.serving.Done
}

func (d *Door) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// Close ends Serve, and has every arrival end. It waits until they are done with, and,
// for a moment, until what they have brought is closed.
func (d *Door) Close() {
	d.mu.Lock()
	d.closed = true
	if d.listener != nil {
		shut(d.listener)
	}
	for a := range d.open {
		a.leave()
	}
	d.mu.Unlock()
	d.leaving.hurry()
	d.serving.Wait()
	d.leaving.wait(doorPatience)
}

// admit has a visitor seen to, unless too many wait.
func (d *Door) admit(c *net.UnixConn) {
	v, err := visitorAt(c)
	v.Door = d.Name
	who := guest{v.UID, v.Host}
	if err == nil && d.turnsAway(c, v) {
		return
	}
	if err != nil || !d.enters(who) {
		d.leaving.begin(func() { seeOff(c) }) // it may come again
		return
	}
	go func() {
		answered := sync.OnceFunc(func() { d.answered(who) })
		a := d.receive(c, v, answered)
		d.leaving.begin(func() {
			defer answered()
			a.release()
		})
		d.serving.Done()
	}()
}

// turnsAway sees off a visitor who cannot enter, whatever is handed in, and reports
// whether it is one.
func (d *Door) turnsAway(c *net.UnixConn, v Visitor) bool {
	if d.Enters == nil {
		return false
	}
	hint, why := d.Enters(v)
	if why == nil {
		return false
	}
	d.Refused(v, nil, why)
	d.leaving.begin(func() {
		(&Arrival{conn: c}).Refuse(why, hint)
		seeOff(c)
	})
	return true
}

// enters counts a visitor, where there is room for one more.
func (d *Door) enters(who guest) bool {
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

func (d *Door) answered(who guest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting[who]--; d.waiting[who] == 0 {
		delete(d.waiting, who)
	}
}

// visitorAt says who is at the other end.
func visitorAt(c *net.UnixConn) (v Visitor, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return v, err
	}
	failed := raw.Control(func(fd uintptr) {
		var who *unix.Ucred
		if who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		v.UID = who.Uid
		var from, own uint64
		if from, err = networkOf(int(fd)); err != nil {
			return
		}
		own, err = ownNetwork()
		v.network = from
		v.Host = err == nil && from == own && (v.UID == 0 || v.UID == uint32(os.Geteuid()))
	})
	return v, errors.Join(failed, err)
}

// receive reads an offer, checks it, and has it taken. What it returns is what is left
// of it, which the caller has released where it may take long.
func (d *Door) receive(c *net.UnixConn, v Visitor, answered func()) *Arrival {
	_ = c.SetDeadline(time.Now().Add(doorPatience))
	text, fds, err := readOffer(c)
	a := &Arrival{Visitor: v, door: d, conn: c, fds: fds}
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
	a.Visitor.Name = a.Offer.Sandbox
	if !d.keep(a) {
		return a
	}
	defer d.forget(a)
	a.answered = answered
	d.Take(a)
	return a
}

func (d *Door) keep(a *Arrival) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.open[a] = struct{}{}
	}
	return !d.closed
}

func (d *Door) forget(a *Arrival) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, a)
}
