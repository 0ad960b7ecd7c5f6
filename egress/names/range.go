package names

import "net/netip"

// A Range is where placeholder addresses come from. A placeholder stands for a name inside a sandbox whose connections
// are captured: a program asks for a name, gets a placeholder, and connects to it. The name of that connection is then
// known, even if the name is denied. Nothing is ever sent to a placeholder.
//
// The first 256 addresses of each prefix stand for no name: the sandbox's own addresses are among them. The zero value
// is no range.
type Range struct{ IPv4, IPv6 netip.Prefix }

// DefaultRange returns the range that egressd uses unless its configuration has another.
//
// Many programs guard against private addresses, and treat both prefixes as ordinary. 100.64.0.0/10 is shared space
// (RFC 6598), not private space of RFC 1918 and not link-local. 2d00::/8 is global unicast that IANA keeps unallocated.
// 198.18.0.0/15 is not used: proxies inside sandboxes take it for private, or for their own.
func DefaultRange() Range {
	return Range{
		IPv4: netip.MustParsePrefix("100.127.0.0/16"),
		IPv6: netip.MustParsePrefix("2d00:6567:7265:7373::/112"),
	}
}

// reserved is the number of addresses at the start of a prefix that stand for no name.
const reserved = 256

// Own returns the addresses of the range that a sandbox itself has.
func (r Range) Own() (ipv4, ipv6 netip.Addr) {
	return offset(r.IPv4, 1), offset(r.IPv6, 1)
}

// capacity returns how many names fit, for both families.
func (r Range) capacity() int {
	n := maxBindings
	for _, p := range []netip.Prefix{r.IPv4, r.IPv6} {
		if bits := p.Addr().BitLen() - p.Bits(); p.IsValid() && bits < 31 {
			n = min(n, 1<<bits-reserved)
		}
	}
	return max(n, 0)
}

// index returns the position of addr in the prefix of its family.
func (r Range) index(addr netip.Addr) (n uint32, ok bool) {
	if n, ok = indexOf(r.IPv4, addr); ok {
		return n, true
	}
	return indexOf(r.IPv6, addr)
}

// offset returns the nth address of p, or the zero Addr if p is too small.
func offset(p netip.Prefix, n uint32) netip.Addr {
	if !p.IsValid() {
		return netip.Addr{}
	}
	b := p.Masked().Addr().As16()
	for i := len(b) - 1; n > 0 && i >= 0; i-- {
		n += uint32(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	a := netip.AddrFrom16(b)
	if p.Addr().Is4() {
		a = a.Unmap()
	}
	if !p.Contains(a) {
		return netip.Addr{}
	}
	return a
}

// indexOf is the inverse of offset.
func indexOf(p netip.Prefix, addr netip.Addr) (n uint32, ok bool) {
	if !p.IsValid() || !p.Contains(addr) {
		return 0, false
	}
	first, b := p.Masked().Addr().As16(), addr.As16()
	for i := range b {
		d := b[i] - first[i] // the host part of a masked prefix is zero
		if i < len(b)-4 && d != 0 {
			return 0, false
		}
		n = n<<8 | uint32(d)
	}
	return n, true
}
