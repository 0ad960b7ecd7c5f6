package logs

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/egress"
)

// A Ranking counts decisions by one value. Its memory is bounded as that of an
// [Overview], and what it comes to has to be counted again in the same way where
// [Ranking.Exact] says so. Its zero value is empty.
type Ranking struct {
	entries map[string]*Entry
	rest    Entry // of the values that are not among them
	fixed   bool
	dropped bool
	most    int // values; [MaxGroups] where it is 0
}

// An Entry is what one value comes to.
type Entry struct {
	Value    string
	Count    int64
	Denied   int64 // of Count
	Up, Down int64 // payload bytes

	weight int64
}

// Add takes in a decision of that value.
func (k *Ranking) Add(value string, r *egress.Record) { k.AddWeight(value, r.Times(), r) }

// AddWeight is Add where something else ranks than how many decisions there are.
func (k *Ranking) AddWeight(value string, weight int64, r *egress.Record) {
	e := k.entries[value]
	switch {
	case e == nil && k.fixed:
		e = &k.rest
	case e == nil:
		if len(k.entries) >= 2*cmp.Or(k.most, MaxGroups) {
			k.shrink()
		}
		if k.entries == nil {
			k.entries = map[string]*Entry{}
		}
		e = &Entry{Value: strings.Clone(value)}
		k.entries[e.Value] = e
	}
	n := r.Times()
	e.Count, e.weight = e.Count+n, e.weight+weight
	if r.Decision != nil && r.Decision.Action == "deny" {
		e.Denied += n
	}
	if r.Bytes != nil {
		e.Up, e.Down = e.Up+r.Bytes.Up, e.Down+r.Bytes.Down
	}
}

// Exact reports whether the counts are those of all that was added.
func (k *Ranking) Exact() bool { return !k.dropped }

// Again returns a ranking of the values of k, without their counts, that gets no
// further ones.
func (k *Ranking) Again() *Ranking {
	again := &Ranking{fixed: true, entries: map[string]*Entry{}}
	for value := range k.entries {
		again.entries[value] = &Entry{Value: value}
	}
	return again
}

// Only is Again with the n values that were most.
func (k *Ranking) Only(n int) *Ranking {
	only := &Ranking{fixed: true, entries: map[string]*Entry{}}
	for _, e := range k.Top(n) {
		only.entries[e.Value] = &Entry{Value: e.Value}
	}
	return only
}

// Top returns the n values that were most, those first, and all where n is 0.
func (k *Ranking) Top(n int) []*Entry {
	all := slices.SortedFunc(maps.Values(k.entries), func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Value, b.Value))
	})
	if n > 0 && len(all) > n {
		all = all[:n]
	}
	return all
}

// shrink keeps half of the values that there is room for by how many they are, and
// half by what they sent.
func (k *Ranking) shrink() {
	half := cmp.Or(k.most, MaxGroups) / 2
	rest := k.Top(0)[half:]
	slices.SortStableFunc(rest, func(a, b *Entry) int { return cmp.Compare(b.Up, a.Up) })
	for _, e := range rest[half:] {
		k.rest.Count, k.rest.Denied = k.rest.Count+e.Count, k.rest.Denied+e.Denied
		k.rest.Up, k.rest.Down = k.rest.Up+e.Up, k.rest.Down+e.Down
		delete(k.entries, e.Value)
	}
	k.dropped = true
}
