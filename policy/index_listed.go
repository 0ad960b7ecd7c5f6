package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ListedHosts are the rules of a file that has one pattern a line.
type ListedHosts struct {
	ID     string // "deny_file[0]"; the rule of a line has the number of the line behind a colon
	File   string // its path
	Effect Verdict
	Hosts  *HostList
}

// FileOfRule returns the id of the file for the rule of a line, "deny_file[0]" for "deny_file[0]:7", and any other id as
// it is.
func FileOfRule(id string) string {
	file, line, found := strings.Cut(id, ":")
	if _, err := strconv.ParseUint(line, 10, 32); !found || err != nil {
		return id
	}
	return file
}

func (l *ListedHosts) rule(ports portSet, line int, ech bool) rule {
	one := Rule{Pattern: Pattern{ports: ports}, ID: l.ID + ":" + strconv.Itoa(line), At: Position{Line: line, Column: 1}}
	return one.compile(l.Effect, ech)
}

// listed finds the rules for a host where some stand in files. Those of one host come together in one bucket, so that
// it makes no difference where a rule is written.
func (ix *index) listed(name string, addr netip.Addr, port uint16, who string) (first *bucket) {
	var all []*bucket
	add := func(static *bucket, host string) {
		if b := ix.with(static, host); b != nil {
			all = append(all, b)
		}
	}
	if addr.IsValid() {
		for bits := addr.BitLen(); bits >= 0; bits-- {
			if prefix, err := addr.Prefix(bits); err == nil {
				static, _ := ix.addresses.Get(prefix)
				add(static, ix.listedPrefix(prefix))
			}
		}
	} else {
		label, parent, _ := strings.Cut(name, ".")
		add(ix.exact[name], name)
		if ix.parents[parent] || ix.anyOneLabel() {
			all = append(all, mergeTies(atPort(ix.beginning(label, parent), port, who), atPort(ix.ending(label, parent), port, who))...)
		}
		add(ix.labels["*."+parent], anyLabel+parent)
		for rest := parent; rest != ""; _, rest, _ = strings.Cut(rest, ".") {
			add(ix.below[rest], "*."+rest)
		}
	}
	add(ix.any, "*")
	for i := len(all) - 1; i >= 0; i-- {
		all[i].next = first
		first = all[i]
	}
	return first
}

// listedPrefix returns the text of a prefix, or "" where no file has one of its length.
func (ix *index) listedPrefix(prefix netip.Prefix) string {
	for i := range ix.files {
		if ix.files[i].Hosts.prefixes[family(prefix.Addr())][prefix.Bits()] {
			return Pattern{kind: addresses, prefix: prefix}.Host()
		}
	}
	return ""
}

// with returns a copy of a bucket, which may be nil, and adds the rules of list files for the same host. It returns
// nil if there are no rules.
func (ix *index) with(static *bucket, host string) *bucket {
	b := &bucket{}
	if static != nil {
		*b = bucket{pattern: static.pattern, rules: slices.Clip(static.rules)}
	}
	for i := range ix.files {
		if host == "" {
			break
		}
		f := &ix.files[i]
		f.Hosts.each([]byte(host), func(ports portSet, line int) {
			b.rules = append(b.rules, f.rule(ports, line, ix.ech))
		})
	}
	switch {
	case len(b.rules) == 0:
		return nil
	case static == nil:
		b.pattern, _ = parsePatternHost(host) // the host of a pattern
	}
	if static == nil || len(b.rules) > len(static.rules) {
		slices.SortStableFunc(b.rules, compareRules)
	}
	return b
}

// anyOneLabel reports whether a file has a pattern with a star within its label.
func (ix *index) anyOneLabel() bool {
	return slices.ContainsFunc(ix.files, func(f ListedHosts) bool { return f.Hosts.oneLabel })
}

// longestListed bounds how many rules the files add to those for one host.
func (ix *index) longestListed() (n int) {
	for i := range ix.files {
		hosts := ix.files[i].Hosts
		levels := 4 + hosts.deepest // the host, its label, "*", and each name above it
		if hosts.oneLabel {
			levels += 2 * maxLabelLength
		}
		for bits := range hosts.prefixes[0] {
			if hosts.prefixes[0][bits] || hosts.prefixes[1][bits] {
				levels++
			}
		}
		n += levels * hosts.most
	}
	return n
}

// family is 0 for an IPv4 address and 1 for an IPv6 address.
func family(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}
