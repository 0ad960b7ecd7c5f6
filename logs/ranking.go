package logs

import (
	"cmp"
	"maps"
	"slices"
	"strings"

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

	weight int64
}

// Add counts a decision under value.
func (k *Ranking) Add(value string, r *record.Record) { k.AddWeight(value, r.Times(), r) }

// AddWeight is like Add, but ranks the value by the sum of weights instead of by the number of decisions.
func (k *Ranking) AddWeight(value string, weight int64, r *record.Record) {
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

// Only is like Again, but keeps just the n highest values.
func (k *Ranking) Only(n int) *Ranking {
	only := &Ranking{fixed: true, entries: map[string]*Entry{}}
	for _, e := range k.Top(n) {
		only.entries[e.Value] = &Entry{Value: e.Value}
	}
	return only
}

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
		k.rest.Count, k.rest.Denied = k.rest.Count+e.Count, k.rest.Denied+e.Denied
		k.rest.Up, k.rest.Down = k.rest.Up+e.Up, k.rest.Down+e.Down
		delete(k.entries, e.Value)
	}
	k.dropped = true
}

// A Pivot counts decisions by two values at once. Values outside the two rankings are counted under
// [Beyond].
type Pivot struct {
	Rows, Columns *Ranking

	cells map[[2]string]int64
}

// Add counts a decision under its two values with the given weight.
func (p *Pivot) Add(row, column string, weight int64, r *record.Record) {
	row, column = p.Rows.cellKey(row), p.Columns.cellKey(column)
	p.Rows.AddWeight(row, weight, r)
	p.Columns.AddWeight(column, weight, r)
	if p.cells == nil {
		p.cells = map[[2]string]int64{}
	}
	p.cells[[2]string{row, column}] += weight
}

// beyondKey is the key of all values without a row or column of their own. No record holds this byte.
const beyondKey = "\xff"

func (k *Ranking) cellKey(value string) string {
	if e := k.entries[value]; e != nil {
		return e.Value
	}
	return beyondKey
}

// Cell returns the count for a row and a column. A nil row or column stands for all values outside that
// ranking.
func (p *Pivot) Cell(row, column *Entry) int64 {
	r, c := beyondKey, beyondKey
	if row != nil {
		r = row.Value
	}
	if column != nil {
		c = column.Value
	}
	return p.cells[[2]string{r, c}]
}
