package policy

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// An Idle is a rule that never decides, or that changes nothing.
type Idle struct {
	Rule   *Rule
	Effect Verdict

	// By are the rules that decide all that Rule matches, in the order of their places.
	By []*Rule

	// Hidden says that some of them have another verdict, and that Rule decides nothing. Otherwise Rule only repeats them.
	Hidden bool
}

// Idle returns the rules of the lists that never decide, or only repeat others. Presets and files are not looked at.
//
// The answer is exact. A rule is tried with one request of each kind that the rules tell apart: hosts, ports, methods
// and paths. Two bounds keep rules out of the answer, and never put one in: the length of names is not considered, and
// rules count as needed once maxJudging comparisons were made, so that no file takes long to read.
func (l *Lists) Idle() (all []Idle) { return l.idle(true) }

// Hidden is [Lists.Idle] for rules that decide nothing. It looks for no others and takes less time.
func (l *Lists) Hidden() (all []Idle) { return l.idle(false) }

func (l *Lists) idle(repeats bool) (all []Idle) {
	g := newGround(l)
	for _, c := range g.lines {
		if g.left < 0 {
			break
		}
		if !repeats && !g.mayHide(c) {
			continue
		}
		if idle := g.judge(c, repeats); idle != nil && (idle.Hidden || repeats && c.from.Plain()) {
			all = append(all, *idle)
		}
	}
	return all
}

// maxJudging is a few seconds of comparisons, some hundred times what long files take.
const maxJudging = 1 << 24

// A ground finds the lines about a host.
type ground struct {
	left     int // comparisons, of maxJudging
	lines    []*placed
	hosts    map[Pattern][]*placed // by the pattern without its ports
	labels   map[string][]Pattern  // of one label: by the name that they are directly below
	exact    map[string][]string   // first labels of names: by the rest
	kinds    map[string][]string   // of labelKinds, by the name that they are below
	prefixes []netip.Prefix        // sorted
	fresh    string                // a label of which no pattern has the whole
}

// A placed is a rule with its pattern.
type placed struct {
	rule
	from *Rule
	host Pattern // without ports
}

func newGround(l *Lists) *ground {
	g := &ground{left: maxJudging, fresh: "-", hosts: map[Pattern][]*placed{}, labels: map[string][]Pattern{}, exact: map[string][]string{}, kinds: map[string][]string{}}
	for _, list := range []struct {
		rules  []Rule
		effect Verdict
	}{{l.Allow, Allow}, {l.UnsafeAllow, Allow}, {l.Deny, Deny}, {l.Ask, Ask}} {
		for i := range list.rules {
			r := &list.rules[i]
			p := &placed{rule: r.compile(list.effect, false), from: r, host: r.Pattern}
			p.host.ports = portSet{}
			g.add(p)
		}
	}
	g.sortPrefixes()
	return g
}

func (g *ground) sortPrefixes() {
	slices.SortFunc(g.prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	g.prefixes = slices.Compact(g.prefixes)
}

func (g *ground) add(p *placed) {
	g.lines = append(g.lines, p)
	if len(g.hosts[p.host]) == 0 {
		switch p.host.kind {
		case exactHost:
			label, parent, _ := strings.Cut(p.host.name, ".")
			g.exact[parent] = append(g.exact[parent], label)
		case oneLabel:
			_, _, parent := p.host.aroundStar()
			g.labels[parent] = append(g.labels[parent], p.host)
		case addresses:
			g.prefixes = append(g.prefixes, p.host.prefix)
		}
	}
	g.hosts[p.host] = append(g.hosts[p.host], p)
}

// mayHide reports whether another line could decide before p: one for the same hosts with a stricter verdict, or, for a
// pattern that closer ones can cover, any.
func (g *ground) mayHide(p *placed) bool {
	return p.host.kind == oneLabel || p.host.kind == addresses && !p.host.isSingle() ||
		slices.ContainsFunc(g.hosts[p.host], func(other *placed) bool { return other.effect < p.effect })
}

// at returns the lines about a host.
func (g *ground) at(d *Destination) (all []*placed) {
	if d.Addr.IsValid() {
		for bits := d.Addr.BitLen(); bits >= 0; bits-- {
			prefix, _ := d.Addr.Prefix(bits)
			all = append(all, g.hosts[Pattern{kind: addresses, prefix: prefix}]...)
		}
		return append(all, g.hosts[Pattern{kind: anyHost}]...)
	}
	_, parent, _ := strings.Cut(d.Host, ".")
	all = append(all, g.hosts[Pattern{kind: exactHost, name: d.Host}]...)
	for _, p := range g.labels[parent] {
		if p.CoversName(d.Host) {
			all = append(all, g.hosts[p]...)
		}
	}
	for rest := parent; rest != ""; _, rest, _ = strings.Cut(rest, ".") {
		all = append(all, g.hosts[Pattern{kind: hostsBelow, name: rest}]...)
	}
	return append(all, g.hosts[Pattern{kind: anyHost}]...)
}

// judge returns nil if p decides something. If repeats is set, p also has to change what the others decide.
func (g *ground) judge(p *placed, repeats bool) *Idle {
	idle := &Idle{Rule: p.from, Effect: p.effect}
	decides, changes := false, !repeats
	for _, d := range g.witnesses(p.host) {
		about := slices.DeleteFunc(g.at(&d), func(m *placed) bool {
			g.left -= 1 + len(p.paths)*len(m.paths) + len(p.further)*len(m.further)
			return disjoint(p, m)
		})
		paths := g.pathKinds(p, about)
		if g.left < 0 {
			return nil
		}
		for request := range requestsOf(p, about, paths) {
			for _, port := range portKinds(p, about) {
				if g.left -= len(about) * (1 + len(p.paths)); g.left < 0 {
					return nil
				}
				by, wins := decider(p, about, port, request)
				decides = decides || wins
				changes = changes || wins && (by == nil || by.effect != p.effect)
				if decides && changes {
					return nil
				}
				if by != nil && !slices.Contains(idle.By, by.from) {
					idle.By = append(idle.By, by.from)
				}
				idle.Hidden = idle.Hidden || by != nil && by.effect != p.effect
			}
		}
	}
	if idle.Hidden = idle.Hidden && !decides; len(idle.By) == 0 {
		return nil
	}
	slices.SortStableFunc(idle.By, func(a, b *Rule) int {
		return cmp.Or(cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
	})
	return idle
}

// disjoint reports whether no request can match both lines, by their ports or by paths that are written out.
func disjoint(p, m *placed) bool {
	if !(Pattern{ports: p.ports}).SharesPort(Pattern{ports: m.ports}) {
		return true
	}
	if len(p.paths) == 0 || len(m.paths) == 0 || p.effect != Allow && m.effect != Allow { // paths that can be read in two ways
		return false
	}
	meet := func(a, b []PathPattern) bool {
		return slices.ContainsFunc(a, func(path PathPattern) bool {
			return strings.Contains(path.text, "*") || slices.ContainsFunc(b, func(other PathPattern) bool { return other.Match(path.text) })
		})
	}
	return !meet(p.paths, m.paths) && !meet(m.paths, p.paths)
}

// decider reports whether p is among the lines that decide a request. If so, it returns the line that would decide
// without p, or nil; otherwise the line that does decide.
func decider(p *placed, about []*placed, port uint16, request *HTTPRequest) (by *placed, wins bool) {
	var matching []*placed
	for _, m := range about {
		if m.ports.has(port) && m.conditions.holds(request) {
			matching = append(matching, m)
		}
	}
	with := decisive(matching)
	if with.effect != p.effect || hasCloser(matching, p) {
		return with, false
	}
	return decisive(slices.DeleteFunc(matching, func(m *placed) bool { return m == p })), true
}

// decisive returns a line that decides what all of some lines match, or nil if there are none.
func decisive(matching []*placed) (by *placed) {
	for _, m := range matching {
		if (by == nil || m.effect < by.effect) && !hasCloser(matching, m) {
			by = m
		}
	}
	return by
}

func hasCloser(all []*placed, p *placed) bool {
	return slices.ContainsFunc(all, func(c *placed) bool { return c.host.Closer(p.host) })
}

// requestsOf yields one request of each kind that the lines tell apart, of those that p is about.
func requestsOf(p *placed, about []*placed, paths []string) iter.Seq[*HTTPRequest] {
	return func(yield func(*HTTPRequest) bool) {
		for _, method := range methodKinds(p, about) {
			for _, path := range paths {
				for assumed := range answersOf(p, about) {
					if r := (&HTTPRequest{Method: method, Path: path, assumed: assumed}); p.conditions.holds(r) && !yield(r) {
						return
					}
				}
			}
		}
	}
}

// answersOf yields each combination of answers to the further conditions of the lines. Some of them may be the answers to no
// request; a line that decides only then is none that never decides.
func answersOf(p *placed, about []*placed) iter.Seq[map[string]fit] {
	own, others := map[string]bool{}, map[string]bool{}
	for _, m := range p.further {
		own[m.words] = true
	}
	for _, line := range about {
		for _, m := range line.further {
			others[m.words] = !own[m.words]
		}
	}
	all := make(map[string]fit)
	words := slices.Sorted(maps.Keys(own))
	for text, other := range others {
		if other {
			words = append(words, text)
		}
	}
	slices.Sort(words[len(own):])
	return func(yield func(map[string]fit) bool) {
		if len(words) == 0 {
			yield(nil)
			return
		}
		var next func(n int) bool
		next = func(n int) bool {
			if n == len(words) {
				return yield(maps.Clone(all))
			}
			for _, a := range [...]fit{yes, unclear, no} {
				if n < len(own) && (a == no || a == unclear && p.ofAllow) {
					continue
				}
				if all[words[n]] = a; !next(n + 1) {
					return false
				}
			}
			return true
		}
		next(0)
	}
}

// portKinds returns one port of each stretch that the lines tell apart, of those of p.
func portKinds(p *placed, about []*placed) []uint16 {
	var all Probes
	for _, m := range about {
		all.addPorts(m.ports)
	}
	slices.Sort(all.Ports)
	return slices.DeleteFunc(slices.Compact(all.Ports), func(port uint16) bool { return !p.ports.has(port) })
}

// methodKinds returns the methods that the lines name, each also in lower case, and one that none names.
func methodKinds(p *placed, about []*placed) []string {
	all := []string{"any other"}
	for _, m := range about {
		for _, method := range m.methods {
			all = append(all, method, strings.ToLower(method))
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(method string) bool { return !p.conditions.holdsMethod(method) })
}

// witnesses returns hosts of p. If p is needed for some host, it is needed for one of these. Of most patterns that is
// one which no closer pattern holds, since every line that decides there decides for all hosts of p, but for closer ones.
func (g *ground) witnesses(p Pattern) (all []Destination) {
	fresh := g.fresh
	switch p.kind {
	case exactHost:
		return []Destination{{Host: p.name}}
	case hostsBelow:
		return []Destination{{Host: fresh + "." + fresh + "." + p.name}}
	case anyHost:
		return []Destination{{Host: fresh + "." + fresh}}
	case addresses:
		for _, addr := range g.addressesOf(p.prefix) {
			all = append(all, Destination{Host: addr.String(), Addr: addr})
		}
	case oneLabel:
		before, after, parent := p.aroundStar()
		if g.kinds[parent] == nil {
			g.kinds[parent] = labelsOf(g.labels[parent], g.exact[parent])
		}
		for _, label := range g.kinds[parent] {
			if strings.HasPrefix(label, before) && strings.HasSuffix(label, after) && len(before+after) <= len(label) {
				all = append(all, Destination{Host: label + "." + parent})
			}
		}
	}
	return all
}

// addressesOf returns an address of prefix that no narrower prefix holds. If there is none, it returns those of the
// widest narrower ones.
func (g *ground) addressesOf(prefix netip.Prefix) (all []netip.Addr) {
	nested := g.inside(prefix)
	if addr := gap(prefix, nested); addr.IsValid() {
		return []netip.Addr{addr}
	}
	widest := netip.Prefix{}
	for _, p := range nested {
		if !widest.IsValid() || !widest.Overlaps(p) {
			widest = p
			all = append(all, g.addressesOf(p)...)
		}
	}
	return all
}

// inside returns the narrower prefixes of the lines in prefix, sorted.
func (g *ground) inside(prefix netip.Prefix) []netip.Prefix {
	first, _ := slices.BinarySearchFunc(g.prefixes, prefix, func(p, q netip.Prefix) int {
		return cmp.Or(p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits()+1))
	})
	end, _ := slices.BinarySearchFunc(g.prefixes[first:], lastAddr(prefix), func(p netip.Prefix, last netip.Addr) int {
		return cmp.Or(p.Addr().Compare(last), -1)
	})
	return g.prefixes[first : first+end]
}

// gap returns an address of prefix that none of the nested prefixes holds, or none. nested is sorted.
func gap(prefix netip.Prefix, nested []netip.Prefix) netip.Addr {
	if len(nested) == 0 {
		return prefix.Addr()
	}
	if nested[0].Bits() <= prefix.Bits() {
		return netip.Addr{}
	}
	low := netip.PrefixFrom(prefix.Addr(), prefix.Bits()+1)
	high := netip.PrefixFrom(lastAddr(low).Next(), prefix.Bits()+1)
	middle, _ := slices.BinarySearchFunc(nested, high.Addr(), func(p netip.Prefix, at netip.Addr) int { return p.Addr().Compare(at) })
	if addr := gap(low, nested[:middle]); addr.IsValid() {
		return addr
	}
	return gap(high, nested[middle:])
}
