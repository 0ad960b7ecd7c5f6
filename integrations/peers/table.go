package peers

import (
	"slices"
	"strings"

	"github.com/egressd/egressd/policy"
)

// A clause is one line of a policy in which the first clause that is about a request decides it.
// Other orders become this one: a policy in which denials win has its denials first.
type clause struct {
	allow   bool
	ask     bool // of a clause that does not allow: somebody is asked
	hosts   hostSet
	ports   []span   // none: all
	methods []string // none: all. GET is without HEAD
	paths   []string // none: all. Patterns of egressd
	only    narrowing
}

// A span is a range of ports, both ends included.
type span struct{ first, last uint16 }

func port(n uint16) span { return span{n, n} }

var (
	allPorts = span{1, 65535}
	webPorts = []span{port(80), port(443)}
)

func (c *clause) conditional() bool { return len(c.methods)+len(c.paths) > 0 || !c.only.none() }

// about reports whether the clause is about all hosts of h at all ports of s. In a table that holds the
// clause, it is about all of them or none. An allow of everything does not open special-purpose
// space: egressd opens that by name alone.
func (c *clause) about(h hostSet, special bool, s span) bool {
	if !c.hosts.holds(h) || special && (c.allow || c.ask) && c.hosts.kind == everyHost {
		return false
	}
	return len(c.ports) == 0 || slices.ContainsFunc(c.ports, func(p span) bool { return p.first <= s.first && s.last <= p.last })
}

// A table is a policy spelled out: for each host pattern in it and each range of ports, what is
// decided for a host that no more specific pattern holds.
type table struct {
	spans []span
	rows  []*row // the most specific first, everything last
}

type row struct {
	hosts  hostSet
	parent *row     // the next less specific one; nil for everything
	does   []action // by span
	denied []bool   // by span: a clause denies just these hosts, and decides
}

// An action is what happens to a request: the first way that holds decides, else allow does.
type action struct {
	ways       []way
	allow, ask bool
}

// A way decides requests with some methods, paths, fields and parameters.
type way struct {
	allow, ask     bool
	methods, paths []string
	only           narrowing
}

func (w way) same(other way) bool {
	return w.allow == other.allow && w.ask == other.ask && slices.Equal(w.methods, other.methods) && slices.Equal(w.paths, other.paths) && w.only.same(other.only)
}

func (a action) same(other action) bool {
	return a.allow == other.allow && a.ask == other.ask && slices.EqualFunc(a.ways, other.ways, way.same)
}

// closed reports whether the action lets no request pass and asks nobody.
func (a action) closed() bool { return a.plain() && !a.allow && !a.ask }

// plain reports whether the action is the same for all requests.
func (a action) plain() bool { return len(a.ways) == 0 }

// tabulate spells clauses out. open is what is decided where no clause is about a request.
func tabulate(clauses []clause, open bool) *table {
	t := &table{spans: spansOf(clauses)}
	seen := map[hostSet]bool{}
	add := func(h hostSet) {
		if !seen[h] {
			seen[h] = true
			t.rows = append(t.rows, &row{hosts: h})
		}
	}
	for i := range clauses {
		add(clauses[i].hosts)
	}
	add(everything)
	order := slices.Clone(t.rows)
	slices.SortStableFunc(t.rows, func(a, b *row) int { return a.hosts.specific(b.hosts) })
	for i, r := range t.rows {
		for _, wider := range t.rows[i+1:] {
			if wider.hosts.holds(r.hosts) {
				r.parent = wider
				break
			}
		}
		r.fill(clauses, t.spans, open)
	}
	t.rows = order
	return t
}

func (r *row) fill(clauses []clause, spans []span, open bool) {
	special := r.hosts.special()
	r.does, r.denied = make([]action, len(spans)), make([]bool, len(spans))
	for i, s := range spans {
		a := &r.does[i]
		a.allow = open && !special
		for j := range clauses {
			c := &clauses[j]
			if !c.about(r.hosts, special, s) {
				continue
			}
			if !c.conditional() {
				a.allow, a.ask, r.denied[i] = c.allow, c.ask, !c.allow && !c.ask && c.hosts == r.hosts
				break
			}
			if w := (way{c.allow, c.ask, c.methods, c.paths, c.only}); !slices.ContainsFunc(a.ways, w.same) {
				a.ways = append(a.ways, w)
			}
		}
		for len(a.ways) > 0 && a.ways[len(a.ways)-1].allow == a.allow && a.ways[len(a.ways)-1].ask == a.ask {
			a.ways = a.ways[:len(a.ways)-1]
		}
	}
}

// spansOf cuts all ports where a clause begins or ends, and around those of the web.
func spansOf(clauses []clause) (all []span) {
	cuts := []int{1, 80, 81, 443, 444, 65536}
	for i := range clauses {
		for _, s := range clauses[i].ports {
			cuts = append(cuts, max(int(s.first), 1), int(s.last)+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	for i, cut := range cuts[:len(cuts)-1] {
		all = append(all, span{uint16(cut), uint16(cuts[i+1] - 1)})
	}
	return all
}

// both is every port that is in both.
func both(a, b []span) (in []span) {
	for _, s := range a {
		for _, t := range b {
			if first, last := max(s.first, t.first), min(s.last, t.last); first <= last {
				in = append(in, span{first, last})
			}
		}
	}
	return in
}

// startingWith returns the pattern of paths that begin with text, or "" where none says so.
func startingWith(text string) string {
	if text == "/" {
		return "/**"
	}
	return pathPattern(text, "*/**")
}

// exactly returns the pattern of one path, or "" where none says so.
func exactly(text string) string { return pathPattern(text, "") }

func pathPattern(text, more string) string {
	if strings.Contains(text, "*") {
		return ""
	}
	if _, err := policy.ParsePathPattern(text + more); err != nil {
		return ""
	}
	return text + more
}
