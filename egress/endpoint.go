package egress

import "net/netip"

// An endpoint is an address and a port without a zone, in little more than half
// the room of a [netip.AddrPort]. The zero value is none.
type endpoint struct {
	addr [16]byte // IPv4 as IPv4-mapped
	port uint16
}

// endpointOf returns a, unmapped, or the zero value where a is not valid.
func endpointOf(a netip.AddrPort) endpoint {
	if !a.IsValid() {
		return endpoint{}
	}
	return endpoint{a.Addr().As16(), a.Port()}
}

func (e endpoint) addrPort() netip.AddrPort {
	if e == (endpoint{}) {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(netip.AddrFrom16(e.addr).Unmap(), e.port)
}
