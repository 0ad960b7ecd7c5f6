package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
)

// An Arrival is an offer that is in order, and who made it.
type Arrival struct {
	Visitor Visitor
	Offer   Offer
	Network uint64 // the kernel's number of what is handed in
	PID     int    // of who is there for it; 0 where it cannot be seen

	door  *Door
	conn  *net.UnixConn
	fds   []int // the sockets, until they are taken
	there *os.File

	answered func() // it does not wait any more
}

// readOffer reads one message and the descriptors that come with it. More than
// belong to any offer are read, too: those that are not, the kernel would close at once,
// and wait at them.
func readOffer(c *net.UnixConn) (text []byte, fds []int, err error) {
	b, rights := make([]byte, offerBytes+1), make([]byte, unix.CmsgSpace(rightsMost*4))
	n, oob, flags, _, err := c.ReadMsgUnix(b, rights)
	fds = jailinit.Descriptors(rights[:oob])
	switch {
	case err != nil:
		return nil, fds, err
	case flags&unix.MSG_CTRUNC != 0 || len(fds) > offeredMost:
		return b[:n], fds, fmt.Errorf("more than %d descriptors", offeredMost)
	case flags&unix.MSG_TRUNC != 0:
		return b[:n], fds, fmt.Errorf("a message of more than %d bytes", offerBytes)
	}
	return b[:n], fds, nil
}

const offeredMost = 16

// check reads the offer and looks at its descriptors.
func (a *Arrival) check(text []byte) error {
	o, err := parseOffer(text)
	if err != nil {
		return err
	}
	a.Offer = *o
	plans := o.plans()
	if len(a.fds) != o.descriptors() {
		return fmt.Errorf("%d descriptors, where %d belong to the message", len(a.fds), o.descriptors())
	}
	own, err := ownNetwork()
	if err != nil {
		return err
	}
	if a.Network, err = checkSockets(a.fds[:len(plans)], plans, own); err != nil {
		return err
	}
	switch {
	case !a.Visitor.Host && (o.Kind != OfferEnter || len(o.Notes) > 0):
		return errors.New("an offer that only root and egressd's own user may make, in the network that egressd itself is in")
	case !a.Visitor.Host && a.Visitor.network != a.Network:
		return errors.New("sockets of a network that the visitor is not in")
	}
	return a.findProcess(o)
}

// Refuse answers that the offer is not taken, and what to type next.
func (a *Arrival) Refuse(why error, hint string) {
	_ = a.answer(Answer{Version: offerVersion, Problem: why.Error(), Hint: hint}) // who is gone needs none
}

// Accept answers that the offer is taken. From now on there is time.
func (a *Arrival) Accept(answer Answer) error {
	answer.Version = offerVersion
	if err := a.answer(answer); err != nil {
		return err
	}
	a.answered()
	return a.conn.SetDeadline(time.Time{})
}

func (a *Arrival) answer(answer any) error {
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	_ = a.conn.SetWriteDeadline(time.Now().Add(doorPatience))
	_, err = a.conn.Write(text)
	return err
}

// Sockets are what was handed in. It is called once.
func (a *Arrival) Sockets() (*Sockets, error) {
	fds := a.fds
	a.fds = nil
	s := &Sockets{Redirected: a.Offer.Mode == Redirected}
	for i, kind := range a.Offer.kinds() {
		held, err := unix.FcntlInt(uintptr(fds[i]), unix.F_DUPFD_CLOEXEC, 0)
		if err == nil {
			s.held = append(s.held, held)
			if err = s.add(kind, fds[i], a.PID); errors.Is(err, errNotSeen) {
				err = nil // then nobody knows which program it is
			}
			fds[i] = -1
		}
		if err != nil {
			for _, fd := range fds[i:] {
				if fd >= 0 {
					discard(fd)
				}
			}
			s.Discard()
			return nil, err
		}
	}
	return s, nil
}

// Wait returns when nobody is there any more for what was handed in, or Close was
// called. It reports whether the visitor has said that it is the end, and waits for
// [Arrival.Conclude].
func (a *Arrival) Wait() (said bool) {
	if a.Offer.Kind == OfferRun {
		var end [8]byte
		n, err := a.conn.Read(end[:])
		return err == nil && n > 0
	}
	raw, err := a.there.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 || err != nil && !errors.Is(err, syscall.EINTR)
	})
	return false
}

// Conclude tells a visitor that waits for the end what it came to.
func (a *Arrival) Conclude(what any) error { return a.answer(what) }

// leave has Wait return.
func (a *Arrival) leave() {
	_ = a.conn.SetDeadline(time.Now())
	if a.there != nil {
		_ = a.there.SetReadDeadline(time.Now())
	}
}

// release closes what is left of an arrival, and of what came behind it.
func (a *Arrival) release() {
	for _, fd := range a.fds {
		discard(fd)
	}
	if a.there != nil {
		a.there.Close()
	}
	seeOff(a.conn)
}
