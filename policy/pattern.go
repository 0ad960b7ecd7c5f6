package policy

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"
)

// A Pattern is a set of hosts, at a set of ports. It is made by
// [ParsePattern]; its zero value matches nothing. Patterns compare with ==.
type Pattern struct {
	kind   patternKind
	name   string       // exactHost: the name; hostsBelow: the suffix, without its dot
	prefix netip.Prefix // addresses: of full length where it is one address
	ports  portSet
}

// The kinds stand in order of specificity; none, that of the zero value, is
// least specific.
type patternKind uint8

const (
	none patternKind = iota
	anyHost
	addresses
	hostsBelow
	exactHost
)

// A portSet is first to last, both included. Its zero value is the default,
// 80 and 443; anyPort is every port.
type portSet struct{ first, last uint16 }

func everyPort() portSet { return portSet{0, 65535} }

func (s portSet) has(port uint16) bool {
	if s == (portSet{}) {
		return port == 80 || port == 443
	}
	return s.first <= port && port <= s.last
}

// A PatternError says why text is not a pattern, and what to type instead.
type PatternError struct {
	Text    string
	Problem string // a clause: "it has a scheme"
	Hint    string // the pattern that was probably meant; empty where that is not clear
}

// Error is one sentence of printable ASCII, whatever Text holds.
func (e *PatternError) Error() string {
	sentence := quoteBriefly(e.Text) + " is not a pattern: " + e.Problem
	if e.Hint != "" {
		sentence += "; write " + e.Hint
	}
	return sentence
}

// ParsePattern reads one pattern of a rule file:
//
//	example.com             the host itself
//	*.example.com           every host below it, at any depth, not itself
//	*                       any host
//	93.184.216.34           one address
//	2606:2800::/32          a prefix, without host bits
//	example.com:8443        at one port; an IPv6 address then needs brackets
//	example.com:8000-8999   at a range of ports
//	example.com:*           at any port
//
// Without a port it means 80 and 443. Hosts are read as by [ParseHost]. Every
// error is a [*PatternError].
func ParsePattern(text string) (Pattern, error) {
	p, problem := parsePattern(text)
	if problem == "" {
		return p, nil
	}
	explained := explainPattern(text, problem)
	if _, stillWrong := parsePattern(explained.Hint); stillWrong != "" {
		explained.Hint = ""
	}
	return Pattern{}, explained
}

func parsePattern(text string) (p Pattern, problem string) {
	host, port, hasPort, problem := splitPattern(text)
	if problem != "" {
		return Pattern{}, problem
	}
	if p, problem = parsePatternHost(host); problem != "" {
		return Pattern{}, problem
	}
	if !hasPort {
		return p, ""
	}
	if p.ports, problem = parsePorts(port); problem != "" {
		return Pattern{}, problem
	}
	return p, ""
}

// splitPattern takes the brackets off an IPv6 address; without them, more
// than one colon is an address without a port.
func splitPattern(text string) (host, port string, hasPort bool, problem string) {
	if strings.HasPrefix(text, "[") {
		host, rest, closed := strings.Cut(text[1:], "]")
		if !closed || !strings.Contains(host, ":") {
			return "", "", false, "brackets stand only around an IPv6 address or prefix"
		}
		if rest == "" {
			return host, "", false, ""
		}
		port, hasPort = strings.CutPrefix(rest, ":")
		if !hasPort {
			return "", "", false, "what follows the brackets is not a port"
		}
		return host, port, true, ""
	}
	if strings.Count(text, ":") > 1 {
		return text, "", false, ""
	}
	host, port, hasPort = strings.Cut(text, ":")
	return host, port, hasPort, ""
}

func parsePatternHost(host string) (Pattern, string) {
	if host == "*" {
		return Pattern{kind: anyHost}, ""
	}
	if suffix, below := strings.CutPrefix(host, "*."); below {
		name, problem := parseName(suffix)
		if problem == "" && endsInNumber(name) {
			problem = "addresses have no names below them"
		}
		return Pattern{kind: hostsBelow, name: name}, problem
	}
	if strings.Contains(host, "/") {
		return parsePrefix(host)
	}
	name, addr, problem := parseHost(host)
	if !addr.IsValid() {
		return Pattern{kind: exactHost, name: name}, problem
	}
	if addr.Is4() && strings.Contains(host, ":") {
		return Pattern{}, "it is an IPv4 address in IPv6 clothes"
	}
	return Pattern{kind: addresses, prefix: netip.PrefixFrom(addr, addr.BitLen())}, problem
}

func parsePrefix(text string) (Pattern, string) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return Pattern{}, "it is neither a host nor an address prefix"
	case prefix.Addr().Is4In6():
		return Pattern{}, "it is an IPv4 prefix in IPv6 clothes"
	case prefix != prefix.Masked():
		return Pattern{}, "it has host bits set"
	}
	return Pattern{kind: addresses, prefix: prefix}, ""
}

func parsePorts(text string) (portSet, string) {
	if text == "*" {
		return everyPort(), ""
	}
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	first, problem := parsePort(low)
	if problem != "" {
		return portSet{}, "the port is not a number from 1 to 65535, a range such as 8000-8999, or *"
	}
	last, problem := parsePort(high)
	if problem != "" || last < first {
		return portSet{}, "the range of ports does not run from a lower port to a higher one"
	}
	return portSet{first, last}, ""
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
	}
	return p.kind == anyHost
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

// String returns the canonical text, which [ParsePattern] reads as p.
func (p Pattern) String() string {
	if p.ports == (portSet{}) {
		return p.hostText()
	}
	return p.bracketed() + ":" + p.ports.String()
}

// bracketed is the host as it stands before a port.
func (p Pattern) bracketed() string {
	if p.kind == addresses && p.prefix.Addr().Is6() {
		return "[" + p.hostText() + "]"
	}
	return p.hostText()
}

func (p Pattern) hostText() string {
	switch p.kind {
	case exactHost:
		return p.name
	case hostsBelow:
		return "*." + p.name
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

// Compare returns a negative number where p is more specific than q, a
// positive one where q is, and 0 only if they are equal: a host comes before
// a wildcard, an address, and "*"; then longer before shorter; then one port
// before a range, the default ports, and any port. What is left is in the
// order of the text, which says nothing about specificity.
func (p Pattern) Compare(q Pattern) int {
	return cmp.Or(
		-cmp.Compare(p.kind, q.kind),
		-cmp.Compare(len(p.name), len(q.name)),
		-cmp.Compare(p.prefix.Bits(), q.prefix.Bits()),
		cmp.Compare(p.ports.rank(), q.ports.rank()),
		cmp.Compare(p.ports.first, q.ports.first),
		cmp.Compare(p.name, q.name),
		p.prefix.Addr().Compare(q.prefix.Addr()),
	)
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
