package dns

import (
	"net"
	"net/netip"
)

// A source is where a datagram came from, and which address it was sent to.
type source struct {
	from netip.AddrPort
	way  []byte // control message for the response; nil where the socket says it all
}

// Addr is where it came from.
func (s source) Addr() netip.AddrPort { return s.from }

func (s source) clone() source {
	s.way = append([]byte(nil), s.way...)
	return s
}

// packets reads and writes the datagrams of a socket. Where that takes what comes
// to any address of the host, a response goes out from the one that the question
// was sent to. It is read by one goroutine, and written by any.
type packets struct {
	conn     *net.UDPConn
	anywhere bool
	control  []byte
}

func newPackets(c *net.UDPConn) (*packets, error) {
	p := &packets{conn: c}
	local, ok := c.LocalAddr().(*net.UDPAddr)
	if ok && local.IP.IsUnspecified() {
		p.anywhere, p.control = true, make([]byte, 128)
		return p, askForDestinations(c, local.AddrPort().Addr().Is4())
	}
	return p, nil
}

func (p *packets) read(b []byte) (int, source, error) {
	if !p.anywhere {
		n, from, err := p.conn.ReadFromUDPAddrPort(b)
		return n, source{from: from}, err
	}
	n, controls, _, from, err := p.conn.ReadMsgUDPAddrPort(b, p.control)
	if err != nil {
		return 0, source{}, err
	}
	return n, source{from, backFrom(p.control[:controls])}, nil
}

// write sends a response. That one is lost is nothing that its sender could help:
// whoever asked asks again.
func (p *packets) write(b []byte, to source) {
	if p.anywhere {
		_, _, _ = p.conn.WriteMsgUDPAddrPort(b, to.way, to.from)
		return
	}
	_, _ = p.conn.WriteToUDPAddrPort(b, to.from)
}
