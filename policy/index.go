package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"
)

// An index finds the rules for a host without looking at the others: names
// and wildcards by a map lookup for each label, addresses by a prefix table.
// It is not changed once it is built.
type index struct {
	exact     map[string]*bucket
	below     map[string]*bucket // by what follows "*."
	labels    map[string]*bucket // of one label: by the name of the pattern
	parents   map[string]bool    // below which labels has any
	addresses bart.Table[*bucket]
	any       *bucket   // the pattern "*"; nil where no rule has it
	named     []portSet // of the rules that let names pass or ask about them, each once

	files []ListedHosts // in which further rules stand
	ech   bool          // the allows among them let an encrypted ClientHello pass
}

// A bucket holds the rules whose patterns name the same host, the most
// specific first. If no rule fits, the search goes on with the next bucket: the next
// less specific pattern that covers the same hosts.
type bucket struct {
	pattern Pattern // of any of its rules: only the host counts
	rules   []rule
	next    *bucket
}

func newIndex() *index {
	return &index{
		exact: make(map[string]*bucket), below: make(map[string]*bucket),
		labels: make(map[string]*bucket), parents: make(map[string]bool),
	}
}

func (ix *index) add(p Pattern, r rule) {
	b := ix.bucketOf(p)
	b.rules = append(b.rules, r)
	if p.kind != addresses && r.effect != Deny && !slices.Contains(ix.named, r.ports) {
		ix.named = append(ix.named, r.ports)
	}
}

// namesAt reports whether a rule may let a name pass at a port, or asks about it. A nil index has no rules. The rules of
// files are not looked at one by one: they may.
func (ix *index) namesAt(port uint16) bool {
	return ix != nil && (len(ix.files) > 0 || slices.ContainsFunc(ix.named, func(s portSet) bool { return s.has(port) }))
}

func (ix *index) bucketOf(p Pattern) *bucket {
	switch p.kind {
	case exactHost:
		return bucketIn(ix.exact, p)
	case hostsBelow:
		return bucketIn(ix.below, p)
	case oneLabel:
		_, _, parent := p.aroundStar()
		ix.parents[parent] = true
		return bucketIn(ix.labels, p)
	case addresses:
		b, found := ix.addresses.Get(p.prefix)
		if !found {
			b = &bucket{pattern: p}
			ix.addresses.Insert(p.prefix, b)
		}
		return b
	}
	if ix.any == nil {
		ix.any = &bucket{pattern: p}
	}
	return ix.any
}

func bucketIn(buckets map[string]*bucket, p Pattern) *bucket {
	b, found := buckets[p.name]
	if !found {
		b = &bucket{pattern: p}
		buckets[p.name] = b
	}
	return b
}

// finish sorts the buckets and links each to the next less specific one. It is
// called once, after the last add.
func (ix *index) finish() {
	for _, names := range []map[string]*bucket{ix.exact, ix.labels, ix.below} {
		for name, b := range names {
			b.finish(ix.suffix(name))
		}
	}
	for prefix, b := range ix.addresses.All() {
		b.finish(ix.wider(prefix))
	}
	if ix.any != nil {
		ix.any.finish(nil)
	}
}

func (b *bucket) finish(next *bucket) {
	b.next = next
	slices.SortStableFunc(b.rules, compareRules)
}

// compareRules orders the rules of one host: one port before a range before
// the default ports before any; with a condition before without; then, which
// is the tie, deny before ask before allow. Of two allows one with a credential
// comes first, which would else never be used; then the stricter.
func compareRules(a, b rule) int {
	return cmp.Or(
		cmp.Compare(a.ports.rank(), b.ports.rank()),
		compareBool(b.conditional(), a.conditional()),
		cmp.Compare(a.effect, b.effect),
		compareBool(b.injects, a.injects),
		compareBool(a.options.anyProtocol, b.options.anyProtocol),
		compareBool(a.options.ech, b.options.ech),
		compareBool(a.options.upgrade, b.options.upgrade),
	)
}

// compareBool puts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

// covers reports whether a pattern of the index holds d, as it was asked for. A
// nil index holds nothing.
func (ix *index) covers(d *Destination) bool {
	if ix == nil {
		return false
	}
	for b := ix.find(d.Host, d.Addr, d.Port); b != nil; b = b.next {
		for i := range b.rules {
			if b.rules[i].ports.has(d.Port) {
				return true
			}
		}
	}
	return false
}

// find returns the most specific bucket for a canonical host, or nil. The chain leaves out rules of one
// label that are not for port, unless port is 0.
func (ix *index) find(name string, addr netip.Addr, port uint16) *bucket {
	if len(ix.files) > 0 {
		return ix.listed(name, addr, port)
	}
	if addr.IsValid() {
		if b, found := ix.addresses.Lookup(addr); found {
			return b
		}
		return ix.any
	}
	b, found := ix.exact[name]
	if !found {
		return ix.wildcard(name, port)
	}
	if _, parent, _ := strings.Cut(name, "."); ix.parents[parent] {
		return &bucket{pattern: b.pattern, rules: b.rules, next: ix.wildcard(name, port)}
	}
	return b
}

// wildcard returns the most specific bucket for name at port without its own.
func (ix *index) wildcard(name string, port uint16) *bucket {
	label, parent, _ := strings.Cut(name, ".")
	if !ix.parents[parent] {
		return ix.suffix(name)
	}
	next := ix.directlyBelow(name, parent)
	begins, ends := atPort(ix.beginning(label, parent), port), atPort(ix.ending(label, parent), port)
	ties := mergeTies(begins, ends)
	for i := len(ties) - 1; i >= 0; i-- {
		ties[i].next = next
		next = ties[i]
	}
	return next
}

// directlyBelow returns the bucket of "*{1}.parent", else that of suffix.
func (ix *index) directlyBelow(name, parent string) *bucket {
	if b, found := ix.labels["*."+parent]; found {
		return b
	}
	return ix.suffix(name)
}

// beginning returns the buckets of "LABEL*.parent" for each beginning of label, the longest first.
func (ix *index) beginning(label, parent string) (all []*bucket) {
	var space [maxNameLength + 2]byte
	for n := len(label); n > 0; n-- {
		key := append(append(append(space[:0], label[:n]...), "*."...), parent...)
		all = ix.appendLabel(all, key)
	}
	return all
}

// ending returns the buckets of "*LABEL.parent" for each end of label, the longest first.
func (ix *index) ending(label, parent string) (all []*bucket) {
	var space [maxNameLength + 2]byte
	for n := range len(label) {
		key := append(append(append(append(space[:0], '*'), label[n:]...), '.'), parent...)
		all = ix.appendLabel(all, key)
	}
	return all
}

// appendLabel appends the bucket of a pattern of one label, if there is one.
func (ix *index) appendLabel(all []*bucket, name []byte) []*bucket {
	b, found := ix.labels[string(name)]
	if len(ix.files) > 0 {
		b = ix.with(b, string(name))
		found = b != nil
	}
	if !found {
		return all
	}
	return append(all, b)
}

// atPort returns the rules for port, each in a bucket of its own, up to the first that always decides.
func atPort(buckets []*bucket, port uint16) (all []*bucket) {
	for _, b := range buckets {
		for i := range b.rules {
			r := &b.rules[i]
			if port != 0 && !r.ports.has(port) {
				continue
			}
			all = append(all, &bucket{pattern: b.pattern, rules: b.rules[i : i+1 : i+1]})
			if port != 0 && !r.conditional() && r.sandbox == "" && r.over == nil {
				return all
			}
		}
	}
	return all
}

// mergeTies merges the rules for the beginning of a label with the rules for its end. Neither list is more specific,
// so the stricter verdict counts: a rule comes before the rules of the other list unless one of them is stricter. If
// each list has a rule that is stricter than the first of the other list, the remaining rules are sorted by strictness.
func mergeTies(a, b []*bucket) (all []*bucket) {
	for len(a) > 0 && len(b) > 0 {
		aFits, bFits := a[0].rules[0].effect <= strictest(b), b[0].rules[0].effect <= strictest(a)
		switch {
		case !aFits && !bFits:
			rest := slices.Concat(a, b)
			slices.SortStableFunc(rest, func(p, q *bucket) int { return cmp.Compare(p.rules[0].effect, q.rules[0].effect) })
			return append(all, rest...)
		case aFits:
			all, a = append(all, a[0]), a[1:]
		default:
			all, b = append(all, b[0]), b[1:]
		}
	}
	return slices.Concat(all, a, b)
}

func strictest(all []*bucket) Verdict {
	effect := Allow
	for _, b := range all {
		effect = min(effect, b.rules[0].effect)
	}
	return effect
}

// suffix returns the bucket of the longest "*.suffix" that covers name, else
// that of "*", which may be nil.
func (ix *index) suffix(name string) *bucket {
	if len(ix.below) == 0 {
		return ix.any
	}
	for {
		dot := strings.IndexByte(name, '.')
		if dot < 0 {
			return ix.any
		}
		name = name[dot+1:]
		if b, found := ix.below[name]; found {
			return b
		}
	}
}

// wider returns the bucket of the next shorter prefix, else that of "*".
func (ix *index) wider(prefix netip.Prefix) *bucket {
	for other, b := range ix.addresses.Supernets(prefix) {
		if other != prefix {
			return b
		}
	}
	return ix.any
}

func (ix *index) addAll(list []Rule, effect Verdict, ech bool) {
	for i := range list {
		ix.add(list[i].Pattern, list[i].compile(effect, ech))
	}
}

// indexOf returns an index of patterns, or nil if there are none.
func indexOf(patterns []Pattern) *index {
	if len(patterns) == 0 {
		return nil
	}
	ix := newIndex()
	for _, p := range patterns {
		ix.add(p, rule{ports: p.ports})
	}
	ix.finish()
	return ix
}

func (ix *index) longest() (most int) {
	if ix == nil {
		return 0
	}
	begins, ends := make(map[string]int), make(map[string]int)
	for _, b := range ix.labels {
		before, after, parent := b.pattern.aroundStar()
		begins[parent] = max(begins[parent], lengthOf(ix.beginning(before, parent)))
		ends[parent] = max(ends[parent], lengthOf(ix.ending(after, parent)))
	}
	for parent := range ix.parents {
		most = max(most, begins[parent]+ends[parent]+ix.directlyBelow("*."+parent, parent).length())
	}
	for name, b := range ix.exact {
		_, parent, _ := strings.Cut(name, ".")
		most = max(most, len(b.rules)+begins[parent]+ends[parent]+ix.directlyBelow(name, parent).length())
	}
	for _, b := range ix.below {
		most = max(most, b.length())
	}
	for _, b := range ix.addresses.All() {
		most = max(most, b.length())
	}
	return max(most, ix.any.length()) + ix.longestListed()
}

// length counts the rules of b and of those that follow it.
func (b *bucket) length() (n int) {
	for ; b != nil; b = b.next {
		n += len(b.rules)
	}
	return n
}

func lengthOf(buckets []*bucket) (n int) {
	for _, b := range buckets {
		n += len(b.rules)
	}
	return n
}
