package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Protocol numbers of the IANA registry that a [Packet] may have.
const (
	ProtocolICMP   = 1
	ProtocolTCP    = 6
	ProtocolUDP    = 17
	ProtocolICMPv6 = 58
)

// A Packet is what a [Wire] keeps of one IP packet.
type Packet struct {
	Protocol int            // IANA number; 0 where the header could not be read
	From, To netip.AddrPort // ports are zero unless TCP or UDP
	SYN, ACK bool           // TCP flags
	Payload  []byte         // of a UDP datagram, as much as was captured
}

func (p Packet) String() string {
	name := map[int]string{ProtocolICMP: "icmp", ProtocolTCP: "tcp", ProtocolUDP: "udp", ProtocolICMPv6: "icmp6"}[p.Protocol]
	if name == "" {
		name = fmt.Sprintf("protocol %d", p.Protocol)
	}
	return fmt.Sprintf("%s %s > %s", name, p.From, p.To)
}

// opens reports whether p is the first word to someone, not an answer: a TCP
// SYN, a datagram, or anything that is not known to be harmless.
func (p Packet) opens() bool {
	switch p.Protocol {
	case ProtocolTCP:
		return p.SYN && !p.ACK
	case ProtocolICMPv6:
		return !p.neighbourly()
	}
	return true
}

// neighbourly reports whether p is IPv6's counterpart of ARP and IGMP:
// neighbour discovery or listener reports, which a kernel sends by itself.
func (p Packet) neighbourly() bool {
	if len(p.Payload) == 0 {
		return false
	}
	t := p.Payload[0]
	return t >= 130 && t <= 137 || t == 143
}

// parsePacket reads an IP packet that may be cut short.
func parsePacket(b []byte) Packet {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		return parseIPv4(b)
	case len(b) >= 40 && b[0]>>4 == 6:
		return parseIPv6(b)
	}
	return Packet{}
}

func parseIPv4(b []byte) Packet {
	header := int(b[0]&15) * 4
	from, _ := netip.AddrFromSlice(b[12:16])
	to, _ := netip.AddrFromSlice(b[16:20])
	p := Packet{Protocol: int(b[9])}
	if header < 20 || header > len(b) {
		header = len(b)
	}
	return p.transport(from, to, b[header:])
}

// parseIPv6 follows a hop-by-hop header, which listener reports carry, and no
// other extension: what has one stays a packet of an unknown protocol.
func parseIPv6(b []byte) Packet {
	from, _ := netip.AddrFromSlice(b[8:24])
	to, _ := netip.AddrFromSlice(b[24:40])
	next, rest := b[6], b[40:]
	if next == 0 && len(rest) >= 8 {
		if length := 8 + 8*int(rest[1]); length <= len(rest) {
			next, rest = rest[0], rest[length:]
		}
	}
	p := Packet{Protocol: int(next)}
	return p.transport(from, to, rest)
}

func (p Packet) transport(from, to netip.Addr, b []byte) Packet {
	var fromPort, toPort uint16
	switch {
	case p.Protocol == ProtocolTCP && len(b) >= 14:
		p.SYN, p.ACK = b[13]&2 != 0, b[13]&16 != 0
		fromPort, toPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	case p.Protocol == ProtocolUDP && len(b) >= 8:
		fromPort, toPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		p.Payload = append([]byte(nil), b[8:]...)
	case p.Protocol == ProtocolTCP || p.Protocol == ProtocolUDP:
		p.Protocol = 0 // too short to be told
	default:
		p.Payload = append([]byte(nil), b...)
	}
	p.From, p.To = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return p
}
