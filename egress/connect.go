package egress

import (
	"context"
	"net/netip"
	"slices"
)

// decided returns what may be dialled, in the order to try.
func (f *Flow) decided() []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	dst := &f.request.Destination
	if dst.Addr.IsValid() {
		return []netip.AddrPort{netip.AddrPortFrom(dst.Addr, dst.Port)}
	}
	decided := make([]netip.AddrPort, len(dst.Addrs))
	for i, a := range dst.Addrs {
		decided[i] = netip.AddrPortFrom(a, dst.Port)
	}
	return decided
}

// leadsTo reports whether the address is one of those that were decided. No address stands for the name itself, which
// an upstream proxy resolves.
func (f *Flow) leadsTo(to netip.AddrPort) bool {
	if !to.IsValid() {
		return len(f.decided()) == 0
	}
	return slices.Contains(f.decided(), netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
}

// judged checks the address once more right before connect(2): it must be a decided one.
func (f *Flow) judged(to netip.AddrPort) error {
	if !f.leadsTo(to) {
		return errNotJudged
	}
	if f.current(context.Background()) != nil {
		return errRefused
	}
	return nil
}

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
