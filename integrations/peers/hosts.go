package peers

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A hostSet is a set of hosts that one pattern of egressd names: everything, the names below
// a name, those of one label more, one name, or the addresses of a prefix. Two sets in one table are disjoint,
// or one holds the other. The zero value holds nothing.
type hostSet struct {
	kind   hostKind
	name   string // of oneName; what belowName is below; "prod-*.example.com", "*-prod.example.com" or "*.example.com" of labelName
	prefix netip.Prefix
}

type hostKind uint8

const (
	noHost hostKind = iota
	everyHost
	somePrefix
	belowName
	labelName
	oneName
)

var everything = hostSet{kind: everyHost}

func label(text string) hostSet       { return hostSet{kind: labelName, name: text} }
func one(name string) hostSet         { return hostSet{kind: oneName, name: name} }
func below(name string) hostSet       { return hostSet{kind: belowName, name: name} }
func within(p netip.Prefix) hostSet   { return hostSet{kind: somePrefix, prefix: p} }
func withinText(text string) hostSet  { return within(netip.MustParsePrefix(text)) }
func nameAndBelow(n string) []hostSet { return []hostSet{one(n), below(n)} }

func (h hostSet) holds(other hostSet) bool {
	switch h.kind {
	case everyHost:
		return true
	case somePrefix:
		return other.kind == somePrefix && h.prefix.Bits() <= other.prefix.Bits() && h.prefix.Contains(other.prefix.Addr())
	case belowName:
		return other == h || other.kind >= belowName && strings.HasSuffix(other.name, "."+h.name)
	case labelName:
		before, after, parent := h.aroundStar()
		if other.kind == labelName {
			otherBefore, otherAfter, otherParent := other.aroundStar()
			return parent == otherParent && strings.HasPrefix(otherBefore, before) && strings.HasSuffix(otherAfter, after)
		}
		first, rest, _ := strings.Cut(other.name, ".")
		return other.kind == oneName && rest == parent && len(first) >= len(before)+len(after) && strings.HasPrefix(first, before) && strings.HasSuffix(first, after)
	case oneName:
		return other == h
	}
	return false
}

// crosses reports whether one set names the beginning of a label and the other one its end. Neither holds the other,
// and both have hosts in common.
func (h hostSet) crosses(other hostSet) bool {
	if h.kind != labelName || other.kind != labelName {
		return false
	}
	before, after, parent := h.aroundStar()
	otherBefore, otherAfter, otherParent := other.aroundStar()
	return parent == otherParent && (before != "" && otherAfter != "" || after != "" && otherBefore != "")
}

// aroundStar splits the name of a labelName.
func (h hostSet) aroundStar() (before, after, parent string) {
	first, parent, _ := strings.Cut(h.name, ".")
	before, after, _ = strings.Cut(first, "*")
	return before, after, parent
}

// specific orders sets so that none comes before one that it holds.
func (h hostSet) specific(other hostSet) int {
	return cmp.Or(
		-cmp.Compare(h.kind, other.kind),
		-cmp.Compare(len(h.name), len(other.name)),
		-cmp.Compare(h.prefix.Bits(), other.prefix.Bits()),
	)
}

// String is the pattern of egressd, without a port.
func (h hostSet) String() string {
	switch h.kind {
	case everyHost:
		return "*"
	case belowName:
		return "*." + h.name
	case labelName:
		if rest, whole := strings.CutPrefix(h.name, "*."); whole {
			return "*{1}." + rest
		}
	case somePrefix:
		if h.prefix.IsSingleIP() {
			return h.prefix.Addr().String()
		}
		return h.prefix.String()
	}
	return h.name
}

// beforePort is the pattern as it stands before a port.
func (h hostSet) beforePort() string {
	if h.kind == somePrefix && h.prefix.Addr().Is6() {
		return "[" + h.String() + "]"
	}
	return h.String()
}

// special reports whether an allow of h is an exception to egressd's baseline.
func (h hostSet) special() bool {
	p, err := policy.ParsePattern(h.String())
	return err == nil && policy.InSpecialSpace(p)
}

// A scope is what a pattern of a peer stands for: the hosts of sets, or, where part is set, only
// some of these.
type scope struct {
	sets  []hostSet
	part  string    // why egressd cannot name just these: "it stands for one label"; empty: it can
	inner []hostSet // if part is set: some sets of hosts that the pattern does stand for
}

func just(sets ...hostSet) scope { return scope{sets: sets} }

// A star says what "*." in front of a name stands for. Within a label, a star of oneLabel stands for text without
// dots, and one of the others for any text.
type star int

const (
	anyDepth star = iota
	anyDepthAndName
	oneLabel
)

func (s star) scope(name string) scope {
	switch s {
	case anyDepthAndName:
		return just(nameAndBelow(name)...)
	case oneLabel:
		return labelScope("*." + name)
	}
	return just(below(name))
}

// labelScope is a pattern of which only the first label has a star. The star stands for text without dots.
func labelScope(text string) scope {
	first, parent, _ := strings.Cut(text, ".")
	h := label(text)
	if _, err := policy.ParsePattern(h.String()); err != nil || strings.Count(first, "*") != 1 || strings.Trim(first, "*") != "" && first[0] != '*' && first[len(first)-1] != '*' {
		return scope{sets: []hostSet{below(parent)}, part: "egressd has no pattern for its label"}
	}
	return just(h)
}

// anyScope reads a prefix, or what [hostScope] reads.
func anyScope(text string, wild star) (scope, error) {
	if p, ok := prefixOf(text); ok {
		return just(within(p)), nil
	}
	return scopeOf(text, wild)
}

// hostScope reads an address, or what [scopeOf] reads.
func hostScope(text string, wild star) (scope, error) {
	if p, ok := prefixOf(text); ok && !strings.Contains(text, "/") {
		return just(within(p)), nil
	}
	return scopeOf(text, wild)
}

// scopeOf reads a name, or a pattern with stars.
func scopeOf(text string, wild star) (scope, error) {
	text = strings.ToLower(text)
	if rest, ok := strings.CutPrefix(text, "*."); ok && !strings.Contains(rest, "*") {
		name, err := policy.ParseName(rest)
		if err != nil {
			return scope{}, err
		}
		return wild.scope(name), nil
	}
	if strings.Contains(text, "*") {
		return globScope(text, wild)
	}
	name, err := policy.ParseName(text)
	return just(one(name)), err
}

// globScope is the smallest set that egressd can name and that holds all hosts of a glob.
func globScope(text string, wild star) (scope, error) {
	labels := strings.Split(text, ".")
	n := len(labels)
	for n > 0 && !strings.Contains(labels[n-1], "*") {
		n--
	}
	for _, c := range text {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.*", c) {
			return scope{}, fmt.Errorf("%q is no pattern of hosts", text)
		}
	}
	parent, err := policy.ParseName(strings.Join(labels[n:], "."))
	if err != nil {
		return scope{sets: []hostSet{everything}, part: "its * is not in the first label"}, nil
	}
	if n > 1 {
		return scope{sets: []hostSet{below(parent)}, part: "its * is not in the first label"}, nil
	}
	s := labelScope(text)
	if wild == oneLabel || s.part != "" {
		return s, nil
	}
	return scope{sets: []hostSet{below(parent)}, part: "its * stands for dots, too", inner: s.sets}, nil
}

// prefixOf reads an address or a prefix, an IPv6 address with or without brackets.
func prefixOf(text string) (netip.Prefix, bool) {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}

// without cuts a prefix out of prefixes.
func without(all []netip.Prefix, hole netip.Prefix) (rest []netip.Prefix) {
	for _, p := range all {
		switch {
		case !p.Overlaps(hole):
			rest = append(rest, p)
		case p.Bits() < hole.Bits():
			low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
			raised := p.Addr().AsSlice()
			raised[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
			addr, _ := netip.AddrFromSlice(raised)
			rest = append(rest, without([]netip.Prefix{low, netip.PrefixFrom(addr, p.Bits()+1)}, hole)...)
		}
	}
	return rest
}
