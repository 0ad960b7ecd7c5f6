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

// A bucket holds the rules whose patterns name the same hosts, in the order of compareRules. If no rule matches, the
// search goes on with the next bucket, whose pattern names the host less closely.
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

// finish sorts the buckets and links each to the one that names its hosts next closely. It is
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

// compareRules orders the rules of one host: a temporary allow that was written for it, deny, ask, allow. The rest
// only chooses which of several rules with one verdict is named, and which of several allows supplies its options: one
// port before a range before the default ports before any; with a condition before without; with a credential before
// without; then the stricter options.
func compareRules(a, b rule) int {
	return cmp.Or(
		compareVerdicts(&a, &b),
		cmp.Compare(a.ports.rank(), b.ports.rank()),
		compareBool(b.conditional(), a.conditional()),
		compareBool(b.injects, a.injects),
		compareBool(a.options.anyProtocol, b.options.anyProtocol),
		compareBool(a.options.ech, b.options.ech),
		compareBool(a.options.upgrade, b.options.upgrade),
		compareBudgets(a.most, b.most),
	)
}

// compareBudgets puts the smaller one first; 0 is the largest.
func compareBudgets(a, b int64) int { return cmp.Compare(uint64(a-1), uint64(b-1)) }

// compareVerdicts puts the rule first that decides if neither names the host more closely.
func compareVerdicts(a, b *rule) int {
	return cmp.Or(compareBool(b.overDeny, a.overDeny), cmp.Compare(a.effect, b.effect))
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
	for b := ix.find(d.Host, d.Addr, d.Port, ""); b != nil; b = b.next {
		for i := range b.rules {
			if b.rules[i].ports.has(d.Port) {
				return true
			}
		}
	}
	return false
}

// find returns the bucket that names a canonical host most closely, or nil. The chain leaves out rules of one label
// for other sandboxes than who, and for other ports than port. A port of 0 leaves out none.
func (ix *index) find(name string, addr netip.Addr, port uint16, who string) *bucket {
	if len(ix.files) > 0 {
		return ix.listed(name, addr, port, who)
	}
	if addr.IsValid() {
		if b, found := ix.addresses.Lookup(addr); found {
			return b
		}
		return ix.any
	}
	b, found := ix.exact[name]
	if !found {
		return ix.wildcard(name, port, who)
	}
	if _, parent, _ := strings.Cut(name, "."); ix.parents[parent] {
		return &bucket{pattern: b.pattern, rules: b.rules, next: ix.wildcard(name, port, who)}
	}
	return b
}

// wildcard returns the bucket that names name at port most closely, without its own.
func (ix *index) wildcard(name string, port uint16, who string) *bucket {
	label, parent, _ := strings.Cut(name, ".")
	if !ix.parents[parent] {
		return ix.suffix(name)
	}
	next := ix.directlyBelow(name, parent)
	ties := mergeTies(atPort(ix.beginning(label, parent), port, who), atPort(ix.ending(label, parent), port, who))
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

// atPort returns the rules for port and for the sandbox who, each in a bucket of its own, up to the first that always
// matches.
func atPort(buckets []*bucket, port uint16, who string) (all []*bucket) {
	for _, b := range buckets {
		for i := range b.rules {
			r := &b.rules[i]
			if port != 0 && !r.ports.has(port) || !r.stands(who) {
				continue
			}
			all = append(all, &bucket{pattern: b.pattern, rules: b.rules[i : i+1 : i+1]})
			if port != 0 && !r.conditional() {
				return all
			}
		}
	}
	return all
}

// mergeTies merges the rules for the beginning of a label with those for its end. Within each list, the first match
// counts. Neither pattern names the host more closely, so of the two matches the stricter decides.
func mergeTies(begins, ends []*bucket) []*bucket {
	if len(begins) == 0 || len(ends) == 0 {
		return append(begins, ends...)
	}
	all := append(unlessEarlier(begins), unlessEarlier(ends)...)
	slices.SortStableFunc(all, func(a, b *bucket) int { return compareVerdicts(&a.rules[0], &b.rules[0]) })
	return all
}

// unlessEarlier prepares rules, of which the first match counts, for sorting by verdict: a rule does not match what an
// earlier one matches that is sorted behind it.
func unlessEarlier(list []*bucket) (all []*bucket) {
	for i, b := range list {
		r := b.rules[0]
		for _, earlier := range list[:i] {
			if compareVerdicts(&earlier.rules[0], &r) > 0 {
				r.unless = append(slices.Clip(r.unless), &earlier.rules[0].conditions)
			}
		}
		all = append(all, &bucket{pattern: b.pattern, rules: []rule{r}})
	}
	return all
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
