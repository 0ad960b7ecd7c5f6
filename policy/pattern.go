package policy

import (
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A Pattern is a set of hosts, at a set of ports. It is made by
// [ParsePattern]; its zero value matches nothing. Patterns compare with ==.
type Pattern struct {
	kind   patternKind
	name   string       // exactHost: the name; hostsBelow: the suffix, without its dot; oneLabel: see there
	prefix netip.Prefix // addresses: of full length where it is one address
	ports  portSet
}

// A later kind names a host more closely than an earlier one.
type patternKind uint8

const (
	none patternKind = iota
	anyHost
	addresses
	hostsBelow
	oneLabel // hosts directly below a name, which has the form "prod-*.example.com", "*-prod.example.com" or "*.example.com"
	exactHost
)

// A portSet is first to last, both included. Its zero value is the default,
// 80 and 443; everyPort is every port.
type portSet struct{ first, last uint16 }

func everyPort() portSet { return portSet{0, 65535} }

func (s portSet) has(port uint16) bool {
	if s == (portSet{}) {
		return port == 80 || port == 443
	}
	return s.first <= port && port <= s.last
}

// MatchesName reports whether the pattern holds a canonical name at port.
func (p Pattern) MatchesName(name string, port uint16) bool {
	return p.ports.has(port) && p.CoversName(name)
}

// MatchesAddr reports whether the pattern holds addr at port. An IPv4-mapped
// address is the IPv4 address; one with a zone is in no pattern.
func (p Pattern) MatchesAddr(addr netip.Addr, port uint16) bool {
	return p.ports.has(port) && p.CoversAddr(addr)
}

// CoversName is MatchesName at some port, for a DNS question, which has none.
func (p Pattern) CoversName(name string) bool {
	switch p.kind {
	case exactHost:
		return name == p.name
	case hostsBelow:
		dot := len(name) - len(p.name) - 1
		return dot > 0 && name[dot] == '.' && name[dot+1:] == p.name
	case oneLabel:
		label, parent, _ := strings.Cut(name, ".")
		before, after, own := p.aroundStar()
		return label != "" && parent == own && strings.HasPrefix(label, before) && strings.HasSuffix(label, after)
	}
	return p.kind == anyHost
}

// aroundStar splits the name of a pattern of the kind oneLabel. The first label is before, a star, after; before or
// after is empty. The other labels are parent.
func (p Pattern) aroundStar() (before, after, parent string) {
	label, parent, _ := strings.Cut(p.name, ".")
	before, after, _ = strings.Cut(label, "*")
	return before, after, parent
}

// CoversAddr is MatchesAddr at some port, for a DNS answer.
func (p Pattern) CoversAddr(addr netip.Addr) bool {
	switch p.kind {
	case addresses:
		return p.prefix.Contains(addr.Unmap())
	case anyHost:
		return addr.IsValid() && addr.Zone() == ""
	}
	return false
}

// IsAddress reports whether the pattern is an address or a prefix.
func (p Pattern) IsAddress() bool { return p.kind == addresses }

func (p Pattern) isSingle() bool { return p.kind == addresses && p.prefix.IsSingleIP() }

// OneHost reports whether p names a single host, so that its samples are all of it.
func (p Pattern) OneHost() bool { return p.kind == exactHost || p.isSingle() }

// String returns the canonical text, which [ParsePattern] reads as p.
func (p Pattern) String() string {
	if p.ports == (portSet{}) {
		return p.Host()
	}
	return p.bracketed() + ":" + p.ports.String()
}

// HasPort reports whether the pattern is about port.
func (p Pattern) HasPort(port uint16) bool { return p.ports.has(port) }

// At returns the same hosts at one port.
func (p Pattern) At(port uint16) Pattern {
	p.ports = portSet{port, port}
	return p
}

// AnyPort returns the same hosts at every port, if p was written without a port.
func (p Pattern) AnyPort() Pattern {
	if p.ports == (portSet{}) {
		p.ports = everyPort()
	}
	return p
}

// EveryPort returns the same hosts at every port.
func (p Pattern) EveryPort() Pattern {
	p.ports = everyPort()
	return p
}

// PortsIn reports whether each port of p is one of some other pattern.
func (p Pattern) PortsIn(others []Pattern) bool {
	var ends Probes
	ends.addPorts(p.ports)
	for _, q := range others {
		ends.addPorts(q.ports)
	}
	return !slices.ContainsFunc(ends.Ports, func(port uint16) bool {
		return p.ports.has(port) && !slices.ContainsFunc(others, func(q Pattern) bool { return q.ports.has(port) })
	})
}

// bracketed is the host as it stands before a port.
func (p Pattern) bracketed() string {
	if p.kind == addresses && p.prefix.Addr().Is6() {
		return "[" + p.Host() + "]"
	}
	return p.Host()
}

func (p Pattern) Host() string {
	switch p.kind {
	case exactHost:
		return p.name
	case hostsBelow:
		return "*." + p.name
	case oneLabel:
		if rest, whole := strings.CutPrefix(p.name, "*."); whole {
			return anyLabel + rest
		}
		return p.name
	case addresses:
		if p.prefix.IsSingleIP() {
			return p.prefix.Addr().String()
		}
		return p.prefix.String()
	case anyHost:
		return "*"
	}
	return ""
}

func (s portSet) String() string {
	switch {
	case s == everyPort():
		return "*"
	case s.first == s.last:
		return strconv.Itoa(int(s.first))
	}
	return strconv.Itoa(int(s.first)) + "-" + strconv.Itoa(int(s.last))
}

// Closer reports whether p names a host that both patterns hold more closely than q does: a name comes before a
// wildcard, and of two wildcards or two prefixes the one comes first whose hosts the other holds as well. The patterns
// "prod-*" and "*-db" tie. Ports do not count.
func (p Pattern) Closer(q Pattern) bool {
	switch {
	case p.kind != q.kind:
		return p.kind > q.kind
	case p.kind == oneLabel:
		before, after, _ := p.aroundStar()
		otherBefore, otherAfter, _ := q.aroundStar()
		return p.name != q.name && strings.HasPrefix(before, otherBefore) && strings.HasSuffix(after, otherAfter)
	case p.kind == addresses:
		return p.prefix.Bits() > q.prefix.Bits()
	}
	return len(p.name) > len(q.name)
}

// rank is smaller for what is more specific: the width of a range, then the
// default, then any port.
func (s portSet) rank() int {
	switch s {
	case portSet{}:
		return 65536
	case everyPort():
		return 65537
	}
	return int(s.last) - int(s.first)
}

// ranges returns s as ranges of ports, the default as its two.
func (s portSet) ranges() []portSet {
	if s == (portSet{}) {
		return []portSet{{80, 80}, {443, 443}}
	}
	return []portSet{s}
}

// SharesTunnel reports whether both patterns match some host at a port other than 80. On port 80 egressd sees requests
// without inspecting TLS.
func (p Pattern) SharesTunnel(q Pattern) bool {
	if !hostsMeet(p, q) {
		return false
	}
	for _, s := range p.ports.ranges() {
		for _, t := range q.ports.ranges() {
			both := portSet{max(s.first, t.first), min(s.last, t.last)}
			if both.first <= both.last && both != (portSet{80, 80}) {
				return true
			}
		}
	}
	return false
}

// SharesPort reports whether the patterns have a port in common.
func (p Pattern) SharesPort(q Pattern) bool {
	for _, s := range p.ports.ranges() {
		for _, t := range q.ports.ranges() {
			if max(s.first, t.first) <= min(s.last, t.last) {
				return true
			}
		}
	}
	return false
}

// SharesHost reports whether the patterns have a host in common.
func (p Pattern) SharesHost(q Pattern) bool { return hostsMeet(p, q) }

// hostsMeet reports whether there is a host that both patterns are about.
func hostsMeet(a, b Pattern) bool {
	if a.kind < b.kind {
		a, b = b, a
	}
	switch {
	case b.kind == none:
		return false
	case b.kind == anyHost:
		return true
	case a.kind == addresses:
		return a.prefix.Overlaps(b.prefix)
	case a.kind == exactHost:
		return b.CoversName(a.name)
	case a.kind == oneLabel:
		return labelsMeet(a, b)
	case b.kind == hostsBelow:
		return a.name == b.name || a.CoversName(b.name) || b.CoversName(a.name)
	}
	return false
}

// labelsMeet is hostsMeet where a is of the kind oneLabel and b is of the same kind or hostsBelow. A beginning and an
// end always meet, even if both together are too long for a label.
func labelsMeet(a, b Pattern) bool {
	before, after, parent := a.aroundStar()
	switch b.kind {
	case hostsBelow:
		return parent == b.name || b.CoversName(parent)
	case oneLabel:
		otherBefore, otherAfter, otherParent := b.aroundStar()
		return parent == otherParent &&
			(strings.HasPrefix(before, otherBefore) || strings.HasPrefix(otherBefore, before)) &&
			(strings.HasSuffix(after, otherAfter) || strings.HasSuffix(otherAfter, after))
	}
	return false
}

// Samples yields typical destinations of p, at each of its ports: the host, an unlisted host below a wildcard, the first
// and the last address of a prefix.
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

func (p Pattern) sampleHosts() []Destination {
	switch p.kind {
	case exactHost:
		return []Destination{{Host: p.name}}
	case hostsBelow:
		return []Destination{{Host: "any-host-below." + p.name}}
	case oneLabel:
		before, after, parent := p.aroundStar()
		const any = "anyhost"
		some := any[:min(len(any), maxLabelLength-len(before+after))]
		return []Destination{{Host: before + some + after + "." + parent}}
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

// InSpecialSpace reports whether all that p names lies in special-purpose
// space, so that in an allow rule it is an exception to the baseline. A prefix
// that also holds public space, such as 0.0.0.0/0 or 8.0.0.0/6, does not.
func InSpecialSpace(p Pattern) bool {
	switch p.kind {
	case exactHost:
		return classOfName(p.name) != ""
	case hostsBelow:
		return classBelow(p.name) != ""
	case oneLabel:
		_, _, parent := p.aroundStar()
		return classBelow(parent) != ""
	case addresses:
		return prefixClass(p.prefix) != ""
	}
	return false
}

// NeedsUnsafe returns the class of p where an allow is not enough for it.
func (p Pattern) NeedsUnsafe() AddressClass {
	if !InSpecialSpace(p) {
		return ""
	}
	var class AddressClass
	switch p.kind {
	case addresses:
		class = ClassOf(p.prefix.Addr())
	case exactHost:
		class = classOfName(p.name)
	case hostsBelow:
		class = classBelow(p.name)
	case oneLabel:
		_, _, parent := p.aroundStar()
		class = classBelow(parent)
	}
	if !class.needsUnsafe() {
		return ""
	}
	return class
}
