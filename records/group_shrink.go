package records

import (
	"cmp"
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
	return &Group{GroupKey: g.GroupKey, sandbox: g.sandbox, host: g.host, port: g.port, many: g.many}
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
	domains := map[string][]string{}
	for key, g := range o.groups {
		if domain := domainKey(g.GroupKey, g.host, g.sandbox, g.port); domain != "" {
			domains[domain] = append(domains[domain], key)
		}
	}
	for domain, keys := range domains {
		if len(keys) < foldFrom {
			continue
		}
		whole := o.folded[domain]
		for _, key := range keys {
			g := o.groups[key]
			if whole == nil {
				whole = g.empty()
				whole.many = true
				name, _, _ := strings.Cut(domain, "\xff")
				whole.Destination = "*." + name
				if g.port != 0 {
					whole.Destination += ":" + strconv.Itoa(int(g.port))
				}
			}
			whole.merge(g)
			delete(o.groups, key)
		}
		if o.folded == nil {
			o.folded = map[string]*Group{}
		}
		o.folded[domain] = whole
	}
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
	parts := map[part][]string{}
	for key, g := range o.groups {
		p := part{g.Action, g.sandbox}
		parts[p] = append(parts[p], key)
	}
	all := make([][]string, 0, len(parts))
	for _, keys := range parts {
		all = append(all, keys)
	}
	slices.SortFunc(all, func(a, b []string) int { return cmp.Compare(len(a), len(b)) })
	room := o.room()
	for i, keys := range all {
		share := room / (len(all) - i)
		for _, key := range o.lowest(keys, share) {
			g := o.groups[key]
			o.beyond(g.GroupKey, g.sandbox).merge(g)
			delete(o.groups, key)
		}
		room -= min(share, len(keys))
	}
	o.dropped = true
}

// lowest returns the lines that are not among the share that stays: half of it
// is for what was most, half for what sent most.
func (o *Overview) lowest(keys []string, share int) []string {
	if len(keys) <= share {
		return nil
	}
	newest := func(a, b string) int { return o.groups[b].Last.Compare(o.groups[a].Last) }
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(o.groups[b].Count, o.groups[a].Count), newest(a, b))
	})
	rest := keys[share/2:]
	slices.SortFunc(rest, func(a, b string) int {
		return cmp.Or(cmp.Compare(o.groups[b].Up, o.groups[a].Up), cmp.Compare(o.groups[b].Count, o.groups[a].Count), newest(a, b))
	})
	return rest[share-share/2:]
}
