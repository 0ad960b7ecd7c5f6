package policy

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"golang.org/x/net/publicsuffix"
)

// CheckGrant says why a command may not add p to an allow list, or nil: an
// allow would not open it, or it holds the hosts of more than one registrant.
// The latter a person may still write into the file.
func CheckGrant(p Pattern) error {
	if class := guardedClass(p); class != "" {
		return fmt.Errorf("%s is %s, which an allow does not open", p, class)
	}
	wide := false
	switch p.kind {
	case none:
		return errors.New("an empty pattern holds nothing")
	case anyHost:
		wide = true
	case hostsBelow:
		suffix, _ := publicsuffix.PublicSuffix(p.name)
		wide = suffix == p.name
	case addresses:
		wide = p.prefix.Bits() < widePrefix(p) && !InSpecialSpace(p)
	}
	if wide {
		return fmt.Errorf("%s %s", p, sharing(p))
	}
	return nil
}

// Sharing says who else answers for the hosts of p where it is allowed, as in
// [File.Warnings], or "".
func (p Pattern) Sharing() string { return sharing(p) }

// Samples yields destinations that stand for what p holds, at each of its
// ports: the host itself, a host below it that has no line of its own, the
// first and the last address of a prefix.
func (p Pattern) Samples() iter.Seq[Destination] {
	return func(yield func(Destination) bool) {
		for _, d := range p.sampleHosts() {
			for port := range p.ports.each() {
				if d.Port = port; !yield(d) {
					return
				}
			}
		}
	}
}

// OneHost reports whether p names a single host, so that its samples are all of it.
func (p Pattern) OneHost() bool { return p.kind == exactHost || p.isSingle() }

func (p Pattern) sampleHosts() []Destination {
	switch p.kind {
	case exactHost:
		return []Destination{{Host: p.name}}
	case hostsBelow:
		return []Destination{{Host: "any-host-below." + p.name}}
	case addresses:
		first, last := p.prefix.Addr(), lastAddr(p.prefix)
		hosts := []Destination{{Host: first.String(), Addr: first}}
		if first != last {
			hosts = append(hosts, Destination{Host: last.String(), Addr: last})
		}
		return hosts
	}
	return nil
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(b) // of the length that an address has
	return addr
}

// each yields the ports of s; of the default, the usual one first.
func (s portSet) each() iter.Seq[uint16] {
	if s == (portSet{}) {
		return slices.Values([]uint16{443, 80})
	}
	return func(yield func(uint16) bool) {
		for port := max(int(s.first), 1); port <= int(s.last); port++ {
			if !yield(uint16(port)) {
				return
			}
		}
	}
}
