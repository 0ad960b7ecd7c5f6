//go:build linux

package attach

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
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/capture"
	"github.com/egressd/egressd/sandbox/foreign"
)

// A Conn is the connection of a client whose request is valid.
type Conn struct {
	Attacher sandbox.Attacher
	Request  Request
	Network  uint64 // the kernel's number of the attached network
	PID      int    // of the attached process; 0 where it is not visible

	server  *Server
	conn    *net.UnixConn
	fds     []int // the sockets, until Sockets
	process *os.File

	answered func() // the client waits no more
}

// readRequest reads one message with its descriptors. It accepts more descriptors than any request may have:
// the kernel would close surplus descriptors during the read, and that can block.
func readRequest(c *net.UnixConn) (text []byte, fds []int, err error) {
	b, rights := make([]byte, requestBytes+1), make([]byte, unix.CmsgSpace(rightsMost*4))
	n, oob, flags, _, err := c.ReadMsgUnix(b, rights)
	fds = jailinit.Descriptors(rights[:oob])
	switch {
	case err != nil:
		return nil, fds, err
	case flags&unix.MSG_CTRUNC != 0 || len(fds) > descriptorsMost:
		return b[:n], fds, fmt.Errorf("more than %d descriptors", descriptorsMost)
	case flags&unix.MSG_TRUNC != 0:
		return b[:n], fds, fmt.Errorf("a message of more than %d bytes", requestBytes)
	}
	return b[:n], fds, nil
}

const (
	descriptorsMost = 16
	rightsMost      = 253 // descriptors that one message can have (SCM_MAX_FD)
)

func (a *Conn) check(text []byte) error {
	o, err := parseRequest(text)
	if err != nil {
		return err
	}
	a.Request = *o
	plans := o.plans()
	if len(a.fds) != o.descriptors() {
		return fmt.Errorf("%d descriptors, where %d belong to the message", len(a.fds), o.descriptors())
	}
	own, err := sandbox.OwnNetwork()
	if err != nil {
		return err
	}
	if o.Kind == KindRefused {
		if a.Attacher.Network != own {
			return errors.New("a refused container, by a client in another network than egressd's own")
		}
		return nil
	}
	if a.Network, err = checkSockets(a.fds[:len(plans)], plans, own); err != nil {
		return err
	}
	switch {
	case !a.Attacher.Host && (o.Kind != KindEnter || len(o.Notes) > 0):
		return errors.New("a request that only root and egressd's own user may make, in the network that egressd itself is in")
	case !a.Attacher.Host && a.Attacher.Network != a.Network:
		return errors.New("sockets of a network that the client is not in")
	}
	return a.findProcess(o)
}

// Refuse answers that the network is not attached, why, and what to type next.
func (a *Conn) Refuse(why error, hint string) {
	_ = a.answer(Answer{Version: version, Problem: why.Error(), Hint: hint}) // who is gone needs none
}

// tell passes on what the client has refused, and answers where that is recorded.
func (a *Conn) tell() {
	if a.server.Told == nil {
		a.Refuse(errors.New("nobody keeps a record here"), "egressd serve")
		return
	}
	id, err := a.server.Told(a.Attacher, a.Request.Container)
	if err != nil {
		a.Refuse(err, "free space for the audit log")
		return
	}
	_ = a.answer(Answer{Version: version, ID: id}) // who is gone needs none
}

// Accept answers that the network is attached, and lifts the deadlines of the connection.
func (a *Conn) Accept(answer Answer) error {
	answer.Version = version
	if err := a.answer(answer); err != nil {
		return err
	}
	a.answered()
	return a.conn.SetDeadline(time.Time{})
}

func (a *Conn) answer(answer any) error {
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	_ = a.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err = a.conn.Write(text)
	return err
}

// Sockets returns the attached sockets. It is called once.
func (a *Conn) Sockets() (*capture.Sockets, error) {
	fds := a.fds
	a.fds = nil
	s := &capture.Sockets{Redirected: a.Request.Mode == Redirected}
	for i, kind := range a.Request.kinds() {
		if err := s.AddForeign(kind, fds[i], a.PID); err != nil {
			for _, fd := range fds[i+1:] {
				foreign.Discard(fd)
			}
			s.Discard()
			return nil, err
		}
	}
	return s, nil
}

// Wait returns when the attached process has ended, the client has said so, or the server is closed. It returns
// true if the client has said so and waits for [Conn.Conclude].
func (a *Conn) Wait() (said bool) {
	if a.Request.Kind == KindRun {
		var end [8]byte
		n, err := a.conn.Read(end[:])
		return err == nil && n > 0
	}
	raw, err := a.process.SyscallConn()
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

// Conclude sends a waiting client the result of its run.
func (a *Conn) Conclude(what any) error { return a.answer(what) }

// interrupt makes Wait return.
func (a *Conn) interrupt() {
	_ = a.conn.SetDeadline(time.Now())
	if a.process != nil {
		_ = a.process.SetReadDeadline(time.Now())
	}
}

// release closes what is left of the client's descriptors, and the connection.
func (a *Conn) release() {
	for _, fd := range a.fds {
		foreign.Discard(fd)
	}
	if a.process != nil {
		a.process.Close()
	}
	foreign.CloseConn(a.conn)
}
