package logs

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/record"
)

// A Ranking counts decisions by one value. Its memory is bounded as that of an [Overview]. If
// [Ranking.Exact] is false, the caller counts once more with [Ranking.Again]. The zero value is empty.
type Ranking struct {
	entries map[string]*Entry
	rest    Entry // sum of all values without an entry
	fixed   bool
	dropped bool
	max     int // maximum number of entries; [MaxGroups] if 0
}

// An Entry holds the counts of one value.
type Entry struct {
	Value  string `json:"value"`
	Count  int64  `json:"count"`
	Denied int64  `json:"denied"` // of Count
	Up     int64  `json:"up"`     // payload bytes
	Down   int64  `json:"down"`

	First time.Time `json:"-"`
	Last  time.Time `json:"-"`

	weight int64
}

// Join adds the counts of another entry.
func (e *Entry) Join(of *Entry) {
	e.Count, e.Denied, e.Up, e.Down = e.Count+of.Count, e.Denied+of.Denied, e.Up+of.Up, e.Down+of.Down
	e.span(of.First, of.Last)
}

// span widens the time of the entry to first and last.
func (e *Entry) span(first, last time.Time) {
	if e.First.IsZero() || !first.IsZero() && first.Before(e.First) {
		e.First = first
	}
	if last.After(e.Last) {
		e.Last = last
	}
}

// Add counts a decision under value. The value is ranked by the sum of its weights.
func (k *Ranking) Add(value string, weight int64, r *record.Record) {
	e := k.entries[value]
	switch {
	case e == nil && k.fixed:
		e = &k.rest
	case e == nil:
		if len(k.entries) >= 2*cmp.Or(k.max, MaxGroups) {
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
	e.span(r.Time, r.Time)
}

// Exact reports whether all counts are complete.
func (k *Ranking) Exact() bool { return !k.dropped }

// Again returns a ranking of the same values with zero counts. It takes no further values.
func (k *Ranking) Again() *Ranking {
	again := &Ranking{fixed: true, entries: map[string]*Entry{}}
	for value := range k.entries {
		again.entries[value] = &Entry{Value: value}
	}
	return again
}

// Rest returns the sum of all values without an entry.
func (k *Ranking) Rest() Entry { return k.rest }

// Top returns the n highest entries, highest first. If n is 0, it returns all.
func (k *Ranking) Top(n int) []*Entry {
	all := slices.SortedFunc(maps.Values(k.entries), func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Value, b.Value))
	})
	if n > 0 && len(all) > n {
		all = all[:n]
	}
	return all
}

// shrink keeps the highest half of the limit by weight, and as many by bytes sent.
func (k *Ranking) shrink() {
	half := cmp.Or(k.max, MaxGroups) / 2
	rest := k.Top(0)[half:]
	slices.SortStableFunc(rest, func(a, b *Entry) int { return cmp.Compare(b.Up, a.Up) })
	for _, e := range rest[half:] {
		k.rest.Join(e)
		delete(k.entries, e.Value)
	}
	k.dropped = true
}
