package capture

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Datagrams receives captured datagrams and refuses them.
type Datagrams struct {
	conn    *net.UDPConn
	answers *os.File // a raw socket in the jail
}

// A Datagram is the source and the destination of a datagram. Its payload is not kept.
type Datagram struct{ From, To netip.AddrPort }

func (s *Sockets) addDatagrams(c net.PacketConn) error {
	conn, ok := c.(*net.UDPConn)
	if !ok {
		return errors.New("not a socket for datagrams")
	}
	s.UDP = append(s.UDP, &Datagrams{conn: conn})
	return nil
}

// Next waits for a datagram. Several goroutines may call it, without gain.
func (d *Datagrams) Next() (Datagram, error) {
	var payload [1]byte
	control := make([]byte, 128)
	for {
		_, n, _, from, err := d.conn.ReadMsgUDPAddrPort(payload[:], control)
		if err != nil {
			return Datagram{}, err
		}
		if n == 0 && from.Port() == 0 {
			return Datagram{}, io.EOF // who has the socket, too, has shut it: it would be read from at once, for ever
		}
		if to, ok := sentTo(control[:n]); ok {
			from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			return Datagram{From: from, To: to}, nil
		}
	}
}

func sentTo(control []byte) (netip.AddrPort, bool) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for _, m := range messages {
		switch b := m.Data; {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVORIGDSTADDR && len(b) >= 8:
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), true
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVORIGDSTADDR && len(b) >= 24:
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), binary.BigEndian.Uint16(b[2:])), true
		}
	}
	return netip.AddrPort{}, false
}

// Refuse sends "port unreachable" to the sender of g, in the name of g's destination (RFC 792, RFC 4443 §3.1).
func (d *Datagrams) Refuse(g Datagram) error {
	if d.answers == nil {
		return nil
	}
	packet, to := unreachable(g)
	raw, err := d.answers.SyscallConn()
	if err != nil {
		return err
	}
	failed := err
	err = raw.Control(func(fd uintptr) { failed = unix.Sendto(int(fd), packet, unix.MSG_DONTWAIT, to) })
	return errors.Join(err, failed)
}

// Close ends Next.
func (d *Datagrams) Close() error {
	err := d.conn.Close()
	if d.answers != nil {
		err = errors.Join(err, d.answers.Close())
	}
	return err
}

const (
	ipv4Head, ipv6Head, udpHead, icmpHead = 20, 40, 8, 8
	hops                                  = 64
)

// unreachable returns the whole answer packet to g, and the address to send it to.
func unreachable(g Datagram) ([]byte, unix.Sockaddr) {
	if g.From.Addr().Is4() && g.To.Addr().Is4() {
		return unreachable4(g), &unix.SockaddrInet4{Addr: g.From.Addr().As4()}
	}
	return unreachable6(g), &unix.SockaddrInet6{Addr: g.From.Addr().As16()}
}

// unreachable4 returns an IPv4 packet with an ICMP message around the headers of g.
func unreachable4(g Datagram) []byte {
	about := appendIPv4(nil, unix.IPPROTO_UDP, g.From.Addr(), g.To.Addr(), udpHead)
	about = appendUDP(about, g)
	icmp := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, about...)
	binary.BigEndian.PutUint16(icmp[2:], checksum(0, icmp))
	return append(appendIPv4(nil, unix.IPPROTO_ICMP, g.To.Addr(), g.From.Addr(), len(icmp)), icmp...)
}

func unreachable6(g Datagram) []byte {
	about := appendIPv6(nil, unix.IPPROTO_UDP, g.From.Addr(), g.To.Addr(), udpHead)
	about = appendUDP(about, g)
	icmp := append([]byte{1, 4, 0, 0, 0, 0, 0, 0}, about...)
	from, to := g.To.Addr().As16(), g.From.Addr().As16()
	sum := partial(partial(0, from[:]), to[:]) + uint32(len(icmp)) + unix.IPPROTO_ICMPV6
	binary.BigEndian.PutUint16(icmp[2:], checksum(sum, icmp))
	return append(appendIPv6(nil, unix.IPPROTO_ICMPV6, g.To.Addr(), g.From.Addr(), len(icmp)), icmp...)
}

func appendUDP(b []byte, g Datagram) []byte {
	b = binary.BigEndian.AppendUint16(b, g.From.Port())
	b = binary.BigEndian.AppendUint16(b, g.To.Port())
	b = binary.BigEndian.AppendUint16(b, udpHead)
	return append(b, 0, 0)
}

func appendIPv4(b []byte, protocol byte, from, to netip.Addr, payload int) []byte {
	source, target := from.As4(), to.As4()
	head := [ipv4Head]byte{0: 0x45, 8: hops, 9: protocol}
	binary.BigEndian.PutUint16(head[2:], uint16(ipv4Head+payload))
	copy(head[12:], source[:])
	copy(head[16:], target[:])
	binary.BigEndian.PutUint16(head[10:], checksum(0, head[:]))
	return append(b, head[:]...)
}

func appendIPv6(b []byte, protocol byte, from, to netip.Addr, payload int) []byte {
	source, target := from.As16(), to.As16()
	head := [ipv6Head]byte{0: 0x60, 6: protocol, 7: hops}
	binary.BigEndian.PutUint16(head[4:], uint16(payload))
	copy(head[8:], source[:])
	copy(head[24:], target[:])
	return append(b, head[:]...)
}

// partial adds b to a sum of RFC 1071.
func partial(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func checksum(sum uint32, b []byte) uint16 {
	for sum = partial(sum, b); sum > 0xffff; {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
