//go:build linux

package dns

import (
	"cmp"
	"crypto/rand"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A socket is connected to an upstream, so that only packets from there arrive, and bound
// to a random port by the kernel. One exchange at a time has it.
type socket struct {
	fd   int
	born time.Time
	uses int

	x       *exchange // that has it, or nil
	sending int       // so many are about to send from it, and until then it may not be closed
	retired bool      // it is to be closed then
}

// ports are sockets between two exchanges. To make one costs more than a question
// and its answer; to have one for long would tell who can send packets in an
// upstream's name where to send them. So an exchange gets one of several, nobody can
// tell which; each serves for a second or portUses exchanges; and one at which anything
// came that was not asked for serves for none. The poller closes all of them a little
// after the last exchange. The zero value is ready for use.
type ports struct {
	spare []*socket

	life time.Duration // of a socket, for tests; 0: portLife
}

const (
	portUses  = 32
	portLife  = time.Second
	portsFrom = 16 // with fewer to choose from an exchange makes a new one
	portsMost = 64
)

// choose returns a socket for one exchange, or nil where a new one has to be made.
func (p *ports) choose() *socket {
	if len(p.spare) < portsFrom {
		return nil
	}
	var noise [1]byte
	rand.Read(noise[:])
	at, last := int(noise[0])%len(p.spare), len(p.spare)-1
	one := p.spare[at]
	p.spare[at], p.spare[last] = p.spare[last], nil
	p.spare = p.spare[:last]
	one.uses++
	return one
}

// give takes a socket back at which all came that was asked for, and nothing else. It
// reports false where it has served its time.
func (p *ports) give(one *socket, now time.Time) bool {
	if one.uses >= portUses || len(p.spare) >= portsMost || p.old(one, now) {
		return false
	}
	p.spare = append(p.spare, one)
	return true
}

func (p *ports) old(one *socket, now time.Time) bool {
	return now.Sub(one.born) >= cmp.Or(p.life, portLife)
}

// drop takes out the sockets that are as gone says, and returns them.
func (p *ports) drop(gone func(*socket) bool) (out []*socket) {
	p.spare = slices.DeleteFunc(p.spare, func(one *socket) bool {
		if !gone(one) {
			return false
		}
		out = append(out, one)
		return true
	})
	return out
}

var errZone = errors.New("the address has a zone")

// newSocket makes a non-blocking socket without package net: the runtime's poller would wake for each packet, too.
func newSocket(to netip.AddrPort) (*socket, error) {
	family, name, err := nameOf(to)
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Connect(fd, name); err != nil {
		_ = syscall.Close(fd)
		return nil, err
	}
	return &socket{fd: fd, born: time.Now(), uses: 1}, nil
}

func nameOf(to netip.AddrPort) (family int, name syscall.Sockaddr, err error) {
	switch a := to.Addr().Unmap(); {
	case a.Zone() != "":
		return 0, nil, errZone
	case a.Is4():
		return syscall.AF_INET, &syscall.SockaddrInet4{Addr: a.As4(), Port: int(to.Port())}, nil
	default:
		return syscall.AF_INET6, &syscall.SockaddrInet6{Addr: a.As16(), Port: int(to.Port())}, nil
	}
}

// messages are the buffers of one sendmmsg(2) or recvmmsg(2) at a socket of an upstream.
type messages struct {
	heads [messagesMost]mmsghdr
	parts [messagesMost]syscall.Iovec
}

const messagesMost = 4

func (p *messages) put(k int, b []byte) {
	p.parts[k] = syscall.Iovec{Base: unsafe.SliceData(b)}
	p.parts[k].SetLen(len(b))
	p.heads[k] = mmsghdr{Msghdr: syscall.Msghdr{Iov: &p.parts[k], Iovlen: 1}}
}

// send sends the first k messages. Where fewer go out there is an error.
func (p *messages) send(fd, k int) error {
	n, _, errno := syscall.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&p.heads)), uintptr(k), syscall.MSG_DONTWAIT, 0, 0)
	switch {
	case errno != 0:
		return errno
	case int(n) < k:
		return syscall.ECONNREFUSED // of the first, that the second was told
	}
	return nil
}

// receive takes as many messages as are there and have room. The error is nil or an
// errno; EAGAIN where there are none.
func (p *messages) receive(fd int) (n int, err error) {
	got, _, errno := syscall.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&p.heads)), messagesMost, syscall.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(got), nil
}
