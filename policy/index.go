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
	addresses bart.Table[*bucket]
	any       *bucket // the pattern "*"; nil where no rule has it
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
	return &index{exact: make(map[string]*bucket), below: make(map[string]*bucket)}
}

func (ix *index) add(p Pattern, r rule) {
	b := ix.bucketOf(p)
	b.rules = append(b.rules, r)
}

func (ix *index) bucketOf(p Pattern) *bucket {
	switch p.kind {
	case exactHost:
		return bucketIn(ix.exact, p)
	case hostsBelow:
		return bucketIn(ix.below, p)
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
	for name, b := range ix.exact {
		b.finish(ix.wildcard(name))
	}
	for name, b := range ix.below {
		b.finish(ix.wildcard(name))
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
	for b := ix.find(d.Host, d.Addr); b != nil; b = b.next {
		for i := range b.rules {
			if b.rules[i].ports.has(d.Port) {
				return true
			}
		}
	}
	return false
}

// find returns the most specific bucket for a canonical host, or nil.
func (ix *index) find(name string, addr netip.Addr) *bucket {
	if addr.IsValid() {
		if b, found := ix.addresses.Lookup(addr); found {
			return b
		}
		return ix.any
	}
	if b, found := ix.exact[name]; found {
		return b
	}
	return ix.wildcard(name)
}

// wildcard returns the bucket of the longest "*.suffix" that covers name, else
// that of "*", which may be nil.
func (ix *index) wildcard(name string) *bucket {
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
	count := func(b *bucket) {
		n := 0
		for ; b != nil; b = b.next {
			n += len(b.rules)
		}
		most = max(most, n)
	}
	for _, b := range ix.exact {
		count(b)
	}
	for _, b := range ix.below {
		count(b)
	}
	for _, b := range ix.addresses.All() {
		count(b)
	}
	count(ix.any)
	return most
}
