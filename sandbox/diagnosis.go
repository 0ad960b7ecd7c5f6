//go:build linux

package sandbox

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/netlink"
)

// A diagnosis asks the kernel about the sockets of a network (sock_diag(7)). The kernel answers at once.
type diagnosis struct {
	socket *os.File

	mu sync.Mutex // one question at a time
}

func (d *diagnosis) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.socket.Close()
}

// A diagnosed socket is the kernel's description of a socket.
type diagnosed struct {
	state         byte
	local, remote netip.AddrPort
	inode         uint32
}

// connected returns the inode of the TCP connection with these local and remote addresses, or 0.
func (d *diagnosis) connected(from, to netip.AddrPort) uint32 {
	for _, s := range d.ask(socketQuestion{protocol: unix.IPPROTO_TCP, family: familyOf(from), from: from, to: to}) {
		// Where there is no such connection the kernel goes on to listeners.
		if s.state != tcpListen && s.local == from && s.remote == to {
			return s.inode
		}
	}
	return 0
}

const tcpListen = 10

// bound returns the inode of the UDP socket that sends from an address, or 0 if several sockets do. An IPv6
// socket may send from an IPv4 address.
func (d *diagnosis) bound(from netip.AddrPort) (inode uint32) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if family == unix.AF_INET && !from.Addr().Is4() {
			continue
		}
		port := netip.AddrPortFrom(netip.Addr{}, from.Port())
		for _, s := range d.ask(socketQuestion{protocol: unix.IPPROTO_UDP, family: family, from: port, all: true}) {
			switch {
			case s.local.Port() != from.Port(), s.inode == 0:
			case s.local.Addr() != from.Addr() && !s.local.Addr().IsUnspecified():
			case inode != 0:
				return 0
			default:
				inode = s.inode
			}
		}
	}
	return inode
}

// listening returns the inode of a TCP listener at an address, or at its port of all addresses, or 0.
func (d *diagnosis) listening(at netip.AddrPort) uint32 {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		port := netip.AddrPortFrom(netip.Addr{}, at.Port())
		for _, s := range d.ask(socketQuestion{protocol: unix.IPPROTO_TCP, family: family, from: port, all: true}) {
			if s.state == tcpListen && s.local.Port() == at.Port() && (s.local.Addr() == at.Addr() || s.local.Addr().IsUnspecified() || at.Addr().IsUnspecified()) {
				return s.inode
			}
		}
	}
	return 0
}

// listeners returns the addresses of TCP listeners, or none if there are too many.
func (d *diagnosis) listeners() (all []netip.AddrPort) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		for _, s := range d.ask(socketQuestion{protocol: unix.IPPROTO_TCP, family: family, all: true, listeners: true}) {
			all = append(all, s.local)
		}
	}
	return all
}

func familyOf(a netip.AddrPort) byte {
	if a.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// A socketQuestion is about the socket with two addresses, or, with all set, about all sockets with two ports.
type socketQuestion struct {
	protocol, family byte
	from, to         netip.AddrPort
	all              bool
	listeners        bool // listeners alone
}

const diagByFamily = 20 // SOCK_DIAG_BY_FAMILY

// message returns q as a message with a struct inet_diag_req_v2.
func (q socketQuestion) message() []byte {
	flags := uint16(0)
	if q.all {
		flags = unix.NLM_F_DUMP
	}
	states := ^uint32(0)
	if q.listeners {
		states = 1 << tcpListen
	}
	b := binary.NativeEndian.AppendUint32([]byte{q.family, q.protocol, 0, 0}, states)
	b = binary.BigEndian.AppendUint16(b, q.from.Port())
	b = binary.BigEndian.AppendUint16(b, q.to.Port())
	for _, a := range []netip.Addr{q.from.Addr(), q.to.Addr()} {
		var field [16]byte
		copy(field[:], a.AsSlice())
		b = append(b, field[:]...)
	}
	b = append(b, 0, 0, 0, 0)                                     // on any interface
	b = append(b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff) // INET_DIAG_NOCOOKIE
	var message netlink.Batch
	message.Add(diagByFamily, flags, b)
	return message.Bytes()
}

// answersMost bounds the messages that are read for one question. A program can open as many sockets on one
// port as it has addresses.
const answersMost = 16

// answersDropped bounds the messages that are thrown away. The owner of an attached network may write answers
// without end.
const answersDropped = 1024

func (d *diagnosis) ask(q socketQuestion) (found []diagnosed) {
	d.mu.Lock()
	defer d.mu.Unlock()
	raw, err := d.socket.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) { found = exchange(int(fd), q) }) // closed: nothing is found
	return found
}

// exchange sends q and reads the answers. If the kernel has more answers than answersMost, exchange returns
// none.
func exchange(fd int, q socketQuestion) (found []diagnosed) {
	if unix.Sendto(fd, q.message(), unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return nil
	}
	b := make([]byte, 16<<10)
	for range answersMost {
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT)
		if err != nil {
			return nil
		}
		more, done := diagnoses(b[:n])
		found = append(found, more...)
		if done || !q.all {
			return found
		}
	}
	drain(fd, b)
	return nil
}

func drain(fd int, b []byte) {
	for range answersDropped {
		if n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT); err != nil || n == 0 {
			return
		}
	}
}

// diagnoses reads the messages in b, and reports whether the last one ends the answer.
func diagnoses(b []byte) (found []diagnosed, done bool) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return nil, true
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			return found, true
		case diagByFamily:
			if s, ok := diagnosedIn(m.Data); ok {
				found = append(found, s)
			}
		}
	}
	return found, false
}

// diagnosedIn reads a struct inet_diag_msg.
func diagnosedIn(b []byte) (diagnosed, bool) {
	if len(b) < 72 {
		return diagnosed{}, false
	}
	s := diagnosed{state: b[1], inode: binary.NativeEndian.Uint32(b[68:])}
	s.local = endIn(b[0], b[4:], b[8:])
	s.remote = endIn(b[0], b[6:], b[24:])
	return s, true
}

func endIn(family byte, port, address []byte) netip.AddrPort {
	addr := netip.AddrFrom16([16]byte(address[:16])).Unmap()
	if family == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(address[:4]))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port))
}
