//go:build !linux

package dns

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// together is how many datagrams are served at a time.
const together = 1

// A source is where a datagram came from.
type source struct {
	from netip.AddrPort
	way  []byte // always nil
}

// packets reads and writes the datagrams of a socket, one at a time. One goroutine reads; any goroutine may write.
type packets struct {
	conn *net.UDPConn
	in   [maxUDP + 1]byte
	size int
	from netip.AddrPort
	room [mostUDP]byte
	out  []byte
}

func newPackets(c *net.UDPConn) (*packets, error) { return &packets{conn: c}, nil }

func (p *packets) read() (n int, err error) {
	p.size, p.from, err = p.conn.ReadFromUDPAddrPort(p.in[:])
	return 1, err
}

func (p *packets) message(int) (msg []byte, from source) { return p.in[:p.size], source{from: p.from} }

// space is room for a response, to be appended to.
func (p *packets) space() []byte { return p.room[:0] }

func (p *packets) respond(_ int, _, b []byte) { p.out = b }

func (p *packets) flush() {
	if p.out != nil {
		p.write(p.out, source{from: p.from})
		p.out = nil
	}
}

// write sends a response. If it is lost, the sender asks again.
func (p *packets) write(b []byte, to source) { _, _ = p.conn.WriteToUDPAddrPort(b, to.from) }

// ignore does nothing: egressd drops the datagrams itself.
func (p *packets) ignore([]netip.Addr) {}

// askForDestinations returns an error: a [PlaceholderServer] is for captured sandboxes, which are on Linux only.
func askForDestinations(syscall.RawConn, bool) error { return errors.ErrUnsupported }

func backFrom([]byte) []byte { return nil }
