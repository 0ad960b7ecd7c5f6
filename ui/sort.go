package ui

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/index"
	"github.com/egressd/egressd/record"
)

// A heading is the head of a column, which sorts the table.
type heading struct {
	Title string
	Right bool   // a column of numbers
	URL   string // sorts by the column, or the other way round if the table is sorted by it already
	Sort  string // "ascending" or "descending" if the table is sorted by it, else ""
}

// head returns the head of a column. The column "up:Up" has the name up in the address and the title Up. "#up:Up" is a column of
// numbers, and sorts the largest first.
func (q *query) head(column string) heading {
	column, right := strings.CutPrefix(column, "#")
	name, title, _ := strings.Cut(column, ":")
	h := heading{Title: title, Right: right}
	by, down := strings.CutPrefix(q.options.Get("sort"), "-")
	switch {
	case by == name && down:
		h.Sort, h.URL = "descending", q.option("sort", name)
	case by == name:
		h.Sort, h.URL = "ascending", q.option("sort", "-"+name)
	case right:
		h.URL = q.option("sort", "-"+name)
	default:
		h.URL = q.option("sort", name)
	}
	return h
}

// Heads returns the heads of columns.
func (q *query) Heads(columns ...string) (all []heading) {
	for _, c := range columns {
		all = append(all, q.head(c))
	}
	return all
}

// sorted sorts rows by the column that the address names. Rows that are equal there stay as they are, as do all rows if the
// address names no column.
func sorted[T any](q *query, rows []T, columns map[string]func(a, b T) int) {
	by, down := strings.CutPrefix(q.options.Get("sort"), "-")
	compare := columns[by]
	switch {
	case compare == nil:
		if by != "" {
			q.Sorted = "There is no column " + by + " to sort by."
		}
	case down:
		slices.SortStableFunc(rows, func(a, b T) int { return compare(b, a) })
	default:
		slices.SortStableFunc(rows, compare)
	}
}

// by compares rows by a text, a number or a size.
func by[T any, V cmp.Ordered](value func(T) V) func(a, b T) int {
	return func(a, b T) int { return cmp.Compare(value(a), value(b)) }
}

// strictness orders verdicts: denied, asked, allowed.
func strictness(action string) int {
	return map[string]int{"deny": 0, "ask": 1, "allow": 2}[action]
}

// rowColumns are the columns of requests that differ between rows of one shape.
var rowColumns = map[string]func(a, b *index.Row) int{
	"time": func(a, b *index.Row) int { return cmp.Compare(a.Number, b.Number) },
	"up":   func(a, b *index.Row) int { return cmp.Compare(a.Up, b.Up) },
	"down": func(a, b *index.Row) int { return cmp.Compare(a.Down, b.Down) },
	"took": func(a, b *index.Row) int { return cmp.Compare(a.Took, b.Took) },
	"id":   func(a, b *index.Row) int { return cmp.Compare(a.Flow, b.Flow) },
}

// shapeColumns are the columns of requests that rows of one shape have in common.
var shapeColumns = map[string]func(*record.Record) string{
	"verdict": func(r *record.Record) string { return string(rune('0' + strictness(r.Decision.Action))) },
	"dest":    logs.Destination, "what": logs.What, "who": logs.Who, "why": logs.Why,
}

// firstRows returns the first rows that match the filter, sorted as the address says. ok is false if it names no column but time.
func (s *Server) firstRows(ctx context.Context, q *query, most int) (first []index.Row, ok bool) {
	by, down := strings.CutPrefix(q.options.Get("sort"), "-")
	compare, text := rowColumns[by], shapeColumns[by]
	if by == "" || by == "time" && down || compare == nil && text == nil {
		if by != "" && by != "time" {
			q.Sorted = "There is no column " + by + " to sort by."
		}
		return nil, false
	}
	if text != nil {
		ranks := s.ranks(s.index.Sum(ctx, q.filter, nil), text)
		compare = func(a, b *index.Row) int {
			return cmp.Or(cmp.Compare(ranks[a.Shape], ranks[b.Shape]), cmp.Compare(b.Number, a.Number))
		}
	}
	if forth := compare; down {
		compare = func(a, b *index.Row) int { return forth(b, a) }
	}
	s.index.Sum(ctx, q.filter, func(r *index.Row) {
		if len(first) == most && compare(r, &first[most-1]) >= 0 {
			return
		}
		at, _ := slices.BinarySearchFunc(first, r, func(a index.Row, b *index.Row) int { return cmp.Or(compare(&a, b), -1) })
		if len(first) == most {
			first = first[:most-1]
		}
		first = slices.Insert(first, at, *r)
	})
	return first, true
}

// ranks orders shapes by a text.
func (s *Server) ranks(sum *index.Sum, text func(*record.Record) string) map[uint32]int {
	texts, all := map[uint32]string{}, map[string]int{}
	s.index.Shapes(slices.Collect(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t := strings.Clone(text(r))
		texts[id], all[t] = t, 0
	})
	for i, t := range slices.Sorted(maps.Keys(all)) {
		all[t] = i
	}
	ranks := map[uint32]int{}
	for id, t := range texts {
		ranks[id] = all[t]
	}
	return ranks
}
