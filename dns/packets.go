//go:build linux

package dns

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// together is how many datagrams one system call takes, where so many wait.
const together = 32

// A source is where a datagram came from, and which address it was sent to.
type source struct {
	from netip.AddrPort
	way  []byte // control message for the response; nil where the socket says it all
}

// packets reads and writes the datagrams of a socket, up to a batch in one system call. If the socket is bound to all
// addresses of the host, each response leaves from the address that the question was sent to. One goroutine reads;
// any goroutine may write.
type packets struct {
	conn     *net.UDPConn
	raw      syscall.RawConn
	anywhere bool

	in, out ring
	stale   int // heads of in, from the first on, that the kernel has written to
	to      int // datagrams in out
	from    int // of them, those that are sent

	n      int // what the last system call returned
	errno  syscall.Errno
	recv   func(fd uintptr) bool
	sendTo func(fd uintptr) bool
}

// A ring is what the kernel is given of so many datagrams.
type ring struct {
	heads [together]mmsghdr
	parts [together]syscall.Iovec
	names [together]syscall.RawSockaddrInet6 // which has room for that of IPv4
	ways  [together][]byte                   // control messages
	room  [together][]byte
}

// An mmsghdr is a message and its size (recvmmsg(2)).
type mmsghdr struct {
	syscall.Msghdr
	size uint32
}

const kernelRoom = 4 << 20 // bytes to send, and to receive; the kernel may give less (net.core.wmem_max, rmem_max)

func newPackets(c *net.UDPConn) (*packets, error) {
	// The kernel queues up to 208 KiB for an unreachable neighbour. With the default buffer, that queue would block
	// the responses to all others.
	_ = c.SetWriteBuffer(kernelRoom)
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	_ = raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, kernelRoom) != nil { // without CAP_NET_ADMIN
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, kernelRoom)
		}
	})
	p := &packets{conn: c, raw: raw, stale: together}
	for i := range together {
		p.in.room[i] = make([]byte, maxUDP+1)
		p.in.ways[i] = make([]byte, 128)
		p.out.room[i] = make([]byte, 0, mostUDP)
	}
	p.recv, p.sendTo = p.recvmmsg, p.sendmmsg
	p.ignore(nil) // one that was handed over may have the filter of an egressd that was killed
	local, ok := c.LocalAddr().(*net.UDPAddr)
	if ok && local.IP.IsUnspecified() {
		p.anywhere = true
		return p, askForDestinations(raw, local.AddrPort().Addr().Is4())
	}
	return p, nil
}

// askForDestinations has the socket say where its datagrams were sent to.
func askForDestinations(raw syscall.RawConn, ipv4 bool) error {
	level, option := syscall.IPPROTO_IPV6, syscall.IPV6_RECVPKTINFO
	if ipv4 {
		level, option = syscall.IPPROTO_IP, syscall.IP_PKTINFO
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), level, option, 1) }); err != nil {
		return err
	}
	return failed
}

// read waits for a datagram, and returns the number of those that are there then. They
// are valid until the next call.
func (p *packets) read() (int, error) {
	for i := range p.stale {
		h := &p.in.heads[i]
		p.in.parts[i] = syscall.Iovec{Base: unsafe.SliceData(p.in.room[i])}
		p.in.parts[i].SetLen(len(p.in.room[i]))
		h.Iov, h.Iovlen = &p.in.parts[i], 1
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&p.in.names[i])), syscall.SizeofSockaddrInet6
		if p.anywhere {
			h.Control = unsafe.SliceData(p.in.ways[i])
			h.SetControllen(len(p.in.ways[i]))
		}
	}
	p.stale = 0
	if err := p.raw.Read(p.recv); err != nil {
		return 0, err
	}
	if p.errno != 0 {
		return 0, p.errno
	}
	p.stale = p.n
	return p.n, nil
}

func (p *packets) recvmmsg(fd uintptr) bool {
	for {
		n, _, errno := syscall.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&p.in.heads)), together, syscall.MSG_DONTWAIT, 0, 0)
		p.n, p.errno = int(n), errno
		if errno != syscall.EINTR {
			return errno != syscall.EAGAIN
		}
	}
}

// message returns one of the datagrams that were read.
func (p *packets) message(i int) (msg []byte, from source) {
	h := &p.in.heads[i]
	from.from = addrPortOf(&p.in.names[i], h.Namelen)
	if p.anywhere {
		from.way = backFrom(p.in.ways[i][:h.Controllen])
	}
	return p.in.room[i][:h.size], from
}

// addrPortOf reads what the kernel calls an address; the zero value is none.
func addrPortOf(name *syscall.RawSockaddrInet6, size uint32) netip.AddrPort {
	switch {
	case size == syscall.SizeofSockaddrInet4 && name.Family == syscall.AF_INET:
		v4 := (*syscall.RawSockaddrInet4)(unsafe.Pointer(name))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), portOf(&v4.Port))
	case size == syscall.SizeofSockaddrInet6 && name.Family == syscall.AF_INET6:
		a := netip.AddrFrom16(name.Addr)
		if name.Scope_id != 0 {
			a = a.WithZone(strconv.Itoa(int(name.Scope_id)))
		}
		return netip.AddrPortFrom(a, portOf(&name.Port))
	}
	return netip.AddrPort{}
}

// portOf reads a port in the byte order of the network.
func portOf(port *uint16) uint16 {
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(port))[:])
}

// space is room for a response, to be appended to.
func (p *packets) space() []byte { return p.out.room[p.to][:0] }

// respond has b, which is in space or longer than that, sent by the next flush to where
// one of the datagrams that were read came from.
func (p *packets) respond(i int, way, b []byte) {
	k := p.to
	p.to++
	p.out.room[k] = b
	p.out.parts[k] = syscall.Iovec{Base: unsafe.SliceData(b)}
	p.out.parts[k].SetLen(len(b))
	h := &p.out.heads[k]
	*h = mmsghdr{Msghdr: syscall.Msghdr{Iov: &p.out.parts[k], Iovlen: 1}}
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&p.in.names[i])), p.in.heads[i].Namelen
	if len(way) > 0 {
		h.Control = unsafe.SliceData(way)
		h.SetControllen(len(way))
	}
}

// flush sends the responses, and waits for nothing: what waits in the kernel for an address that nobody
// has could fill the room of the socket for good. That one is lost is nothing that its
// sender could help: whoever asked asks again.
func (p *packets) flush() {
	for p.from = 0; p.from < p.to; {
		if p.raw.Write(p.sendTo) != nil {
			break // the socket is closed
		}
		if p.errno != 0 {
			p.from++ // the one that it is about
		}
		p.from += p.n
	}
	p.to = 0
}

func (p *packets) sendmmsg(fd uintptr) bool {
	for {
		n, _, errno := syscall.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&p.out.heads[p.from])), uintptr(p.to-p.from), syscall.MSG_DONTWAIT, 0, 0)
		p.n, p.errno = max(int(n), 0), errno
		if errno != syscall.EINTR {
			return true
		}
	}
}

// write sends a response later on, from any goroutine, and waits for nothing either.
func (p *packets) write(b []byte, to source) {
	name := sockaddrOf(to.from)
	_ = p.raw.Write(func(fd uintptr) bool {
		for syscall.Sendmsg(int(fd), b, to.way, name, syscall.MSG_DONTWAIT) == syscall.EINTR {
		}
		return true
	})
}

// sockaddrOf converts an address that addrPortOf has read. A mapped IPv4 address came from a socket for both families.
func sockaddrOf(a netip.AddrPort) syscall.Sockaddr {
	if a.Addr().Is4() {
		return &syscall.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	zone, _ := strconv.ParseUint(a.Addr().Zone(), 10, 32) // as addrPortOf writes it
	return &syscall.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port()), ZoneId: uint32(zone)}
}

// backFrom makes the control message of a response from that of its question: it
// goes out from the address that the question was sent to, by whatever interface
// leads back.
func backFrom(control []byte) []byte {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == syscall.IPPROTO_IP && m.Header.Type == syscall.IP_PKTINFO && len(m.Data) >= syscall.SizeofInet4Pktinfo:
			var back [syscall.SizeofInet4Pktinfo]byte
			copy(back[4:8], m.Data[8:12]) // the address in the header of the packet
			return controlMessage(syscall.IPPROTO_IP, syscall.IP_PKTINFO, back[:])
		case m.Header.Level == syscall.IPPROTO_IPV6 && m.Header.Type == syscall.IPV6_PKTINFO && len(m.Data) >= syscall.SizeofInet6Pktinfo:
			back := append([]byte(nil), m.Data[:syscall.SizeofInet6Pktinfo]...)
			if m.Data[0] != 0xfe { // link-local addresses mean nothing without their interface
				clear(back[16:])
			}
			return controlMessage(syscall.IPPROTO_IPV6, syscall.IPV6_PKTINFO, back)
		}
	}
	return nil
}

func controlMessage(level, kind int32, data []byte) []byte {
	b := make([]byte, syscall.CmsgSpace(len(data)))
	h := (*syscall.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, kind
	h.SetLen(syscall.CmsgLen(len(data)))
	copy(b[syscall.CmsgLen(0):], data)
	return b
}
