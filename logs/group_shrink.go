package logs

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// foldFrom is from how many names below one domain they are folded.
const foldFrom = 50

// Exact reports whether the counts are those of all that was added. Where they are
// not, the same decisions have to be added to [Overview.Again].
func (o *Overview) Exact() bool { return !o.dropped }

// Again returns an overview of the lines of o, without their counts, that gets
// no further ones. What is added to it is counted exactly, with the rest under
// [Beyond].
func (o *Overview) Again() *Overview {
	again := &Overview{fixed: true, groups: map[string]*Group{}, folded: map[string]*Group{}}
	for key, g := range o.groups {
		again.groups[key] = g.empty()
	}
	for key, g := range o.folded {
		again.folded[key] = g.empty()
	}
	return again
}

func (g *Group) empty() *Group {
	return &Group{GroupKey: g.GroupKey, key: g.key, sandbox: g.sandbox, host: g.host, port: g.port, many: g.many}
}

// shrink makes room for other lines.
func (o *Overview) shrink() {
	o.fold()
	if len(o.groups) > o.room() {
		o.drop()
	}
}

// domainKey is what the lines of one domain have in common, or "" where the host
// is not below a registered one.
func domainKey(k GroupKey, host, sandbox string, port uint16) string {
	if host == "" || strings.Contains(host, ":") || host[len(host)-1] >= '0' && host[len(host)-1] <= '9' { // an address
		return ""
	}
	domain := policy.Registrable(host)
	if domain == "" || domain == host {
		return ""
	}
	return strings.Join([]string{domain, strconv.Itoa(int(port)), k.Action, k.What, k.Who, k.Why, sandbox}, "\xff")
}

// fold makes the lines of one domain one, where there are many.
func (o *Overview) fold() {
	domains := map[string][]*Group{}
	for _, g := range o.groups {
		if !g.split {
			g.split, g.domain = true, domainKey(g.GroupKey, g.host, g.sandbox, g.port)
		}
		if g.domain != "" {
			domains[g.domain] = append(domains[g.domain], g)
		}
	}
	for domain, groups := range domains {
		if len(groups) < foldFrom {
			continue
		}
		if o.folded == nil {
			o.folded = map[string]*Group{}
		}
		whole := o.folded[domain]
		if whole == nil {
			whole = groups[0].domainLine()
			o.folded[domain] = whole
		}
		for _, g := range groups {
			whole.merge(g)
			delete(o.groups, g.key)
		}
	}
}

// domainLine is an empty line for all names of g's domain.
func (g *Group) domainLine() *Group {
	whole := g.empty()
	name, _, _ := strings.Cut(g.domain, "\xff")
	whole.Destination, whole.many = "*."+name, true
	if g.port != 0 {
		whole.Destination += ":" + strconv.Itoa(int(g.port))
	}
	return whole
}

// merge adds what is counted in other, and offers to allow nothing: it is about
// many names.
func (g *Group) merge(other *Group) {
	if other.Last.After(g.Last) {
		g.Last, g.flow = other.Last, append(g.flow[:0], other.flow...)
	}
	g.many, g.Allow = true, ""
	g.Count, g.Up, g.Down = g.Count+other.Count, g.Up+other.Up, g.Down+other.Down
	g.Failed, g.Refused, g.Cut, g.Open = g.Failed+other.Failed, g.Refused+other.Refused, g.Cut+other.Cut, g.Open+other.Open
}

// drop leaves at most [MaxGroups] lines. All who have lines get the same room,
// and what they do not need is the others'.
func (o *Overview) drop() {
	type part struct{ action, sandbox string }
	parts := map[part][]*Group{}
	for _, g := range o.groups {
		p := part{g.Action, g.sandbox}
		parts[p] = append(parts[p], g)
	}
	room, left := o.room(), len(parts)
	for _, groups := range slices.SortedFunc(maps.Values(parts), func(a, b []*Group) int { return cmp.Compare(len(a), len(b)) }) {
		share := room / left
		for _, g := range lowest(groups, share) {
			o.beyond(g.Action, g.Why, g.sandbox).merge(g)
			delete(o.groups, g.key)
		}
		room, left = room-min(share, len(groups)), left-1
	}
	o.dropped = true
}

// lowest returns the lines that are not among the share that stays: half of it
// is for what was most, half for what sent most.
func lowest(groups []*Group, share int) []*Group {
	if len(groups) <= share {
		return nil
	}
	slices.SortFunc(groups, func(a, b *Group) int { return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last)) })
	rest := groups[share/2:]
	slices.SortStableFunc(rest, func(a, b *Group) int { return cmp.Compare(b.Up, a.Up) })
	return rest[share-share/2:]
}
