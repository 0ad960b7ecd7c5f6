package index

import (
	"context"
	"path/filepath"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/record"
)

// A Total sums the rows of one shape that match a filter.
type Total struct {
	Count, Up, Down int64
	Open            int64 // of Count, connections and requests that have not ended
	First, Last     int64 // Unix microseconds
	Flow            record.ID
	Number          int64 // of the record of the last decision
}

// A Sum is the answer to a filter.
type Sum struct {
	Totals      map[uint32]*Total // by shape
	First, Last int64             // Unix microseconds of the first and the last row that match
	Minutes     map[int64]*Minute // by Unix minute
	Progress    Progress
}

// A Minute counts the decisions of a minute.
type Minute struct{ Allowed, Denied, Asked int64 }

func (m *Minute) count(verdict string, n int64) {
	switch verdict {
	case "allow":
		m.Allowed += n
	case "ask":
		m.Asked += n
	default:
		m.Denied += n
	}
}

// A question is a filter, prepared for the shapes of an index.
type question struct {
	own     *logs.Filter // nil if it matches everything
	matches []bool       // by shape
	logs    []bool       // by log
	scratch record.Record
	bytes   record.Bytes
	http    record.HTTP
}

// ask requires mu.
func (x *Index) ask(f *logs.Filter) *question {
	shared, own := f.Split()
	q := &question{own: own, matches: make([]bool, len(x.shapes)), logs: make([]bool, len(x.logs))}
	for i, dir := range x.logs {
		q.logs[i] = f.Run == "" || filepath.Base(dir) == f.Run
	}
	if own.Empty() {
		q.own = nil
	}
	var s shape
	for i, text := range x.shapes {
		if shared.Empty() {
			q.matches[i] = true
			continue
		}
		s.parse(text)
		q.matches[i] = shared.Match(s.view())
	}
	return q
}

func (q *question) holds(r *Row) bool {
	if q.own == nil {
		return true
	}
	q.scratch.Time, q.scratch.Flow, q.scratch.Seq = time.UnixMicro(r.Time), r.Flow.String(), r.Seq
	q.scratch.Duration, q.scratch.Bytes, q.scratch.HTTP = r.Took.Milliseconds(), nil, nil
	if r.Query > 0 {
		q.http.QueryBytes = r.Query
		q.scratch.HTTP = &q.http
	}
	if r.Ended {
		q.bytes = record.Bytes{Up: r.Up, Down: r.Down}
		q.scratch.Bytes = &q.bytes
	}
	return q.own.Match(&q.scratch)
}

// each calls do with the rows that count and match, the oldest first. It requires mu.
func (x *Index) each(ctx context.Context, q *question, do func(*Row)) {
	var r Row
	number, at := x.first, 0
	for _, chunk := range x.chunks {
		if ctx.Err() != nil {
			return
		}
		for i := range chunk {
			if q.matches[chunk[i].shape] && chunk[i].count > 0 {
				at = x.stretchOf(x.base+int64(chunk[i].number), at)
				if r = x.whole(&chunk[i], number, at); q.logs[x.stretches[at].log] && q.holds(&r) {
					do(&r)
				}
			}
			number++
		}
	}
}

// Sum sums the rows that match f by shape, and calls also with each of them unless it is nil. A Sum that
// ctx has ended is not whole.
func (x *Index) Sum(ctx context.Context, f *logs.Filter, also func(*Row)) *Sum {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := &Sum{Totals: map[uint32]*Total{}, Minutes: map[int64]*Minute{}, Progress: Progress{x.next, x.rows(), x.first, len(x.shapes), x.summed, x.caught, x.last, x.err}}
	totals := make([]*Total, len(x.shapes))
	var minute *Minute
	at := int64(-1)
	x.each(ctx, x.ask(f), func(r *Row) {
		t := totals[r.Shape]
		if t == nil {
			t = &Total{First: r.Time}
			totals[r.Shape], s.Totals[r.Shape] = t, t
		}
		t.Count += int64(r.Count)
		t.Up, t.Down = t.Up+r.Up, t.Down+r.Down
		if x.opens[r.Shape] {
			t.Open += int64(r.Count)
		}
		t.Flow, t.Number = r.Flow, r.Number
		t.First, t.Last = min(t.First, r.Time), max(t.Last, r.Time)
		if m := r.Time / 60_000_000; m != at || minute == nil {
			at = m
			if minute = s.Minutes[m]; minute == nil {
				minute = &Minute{}
				s.Minutes[m] = minute
			}
		}
		minute.count(x.verdicts[r.Shape], int64(r.Count))
		if s.First == 0 || r.Time < s.First {
			s.First = r.Time
		}
		s.Last = max(s.Last, r.Time)
		if also != nil {
			also(r)
		}
	})
	return s
}

// A LogSum sums the rows of one log that match a filter.
type LogSum struct {
	Minute   // allowed, denied and asked
	Open     int64
	Up, Down int64
	Last     int64 // Unix microseconds
}

// ByLog sums the rows that match f by the folder of their log.
func (x *Index) ByLog(ctx context.Context, f *logs.Filter) map[string]*LogSum {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := map[string]*LogSum{}
	x.each(ctx, x.ask(f), func(r *Row) {
		s := all[r.Log]
		if s == nil {
			s = &LogSum{}
			all[r.Log] = s
		}
		s.count(x.verdicts[r.Shape], int64(r.Count))
		if x.opens[r.Shape] {
			s.Open += int64(r.Count)
		}
		s.Up, s.Down, s.Last = s.Up+r.Up, s.Down+r.Down, max(s.Last, r.Time)
	})
	return all
}

// Newest returns the newest rows that count, match f and are older than the record numbered before, newest first,
// and at most as many as limit.
func (x *Index) Newest(ctx context.Context, f *logs.Filter, before int64, limit int) (found []Row) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	q := x.ask(f)
	number, at := x.first+int64(x.rows()), len(x.stretches)-1
	for c := len(x.chunks) - 1; c >= 0 && ctx.Err() == nil; c-- {
		for i := len(x.chunks[c]) - 1; i >= 0; i-- {
			number--
			one := &x.chunks[c][i]
			record := x.base + int64(one.number)
			if !q.matches[one.shape] || one.count == 0 || record >= before {
				continue
			}
			for x.stretches[at].number > record {
				at--
			}
			r := x.whole(one, number, at)
			if !q.logs[x.stretches[at].log] || !q.holds(&r) {
				continue
			}
			if found = append(found, r); len(found) == limit {
				return found
			}
		}
	}
	return found
}

// ByFlow returns the first row of a flow.
func (x *Index) ByFlow(id record.ID) (Row, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	number := x.first
	for _, chunk := range x.chunks {
		for i := range chunk {
			if chunk[i].flow == id {
				return x.whole(&chunk[i], number, x.stretchOf(x.base+int64(chunk[i].number), 0)), true
			}
			number++
		}
	}
	return Row{}, false
}

// Shapes calls do with the records of shapes, each valid until do returns.
func (x *Index) Shapes(ids []uint32, do func(id uint32, r *record.Record)) {
	x.mu.RLock()
	texts := x.shapes // elements are never changed
	x.mu.RUnlock()
	var s shape
	for _, id := range ids {
		s.parse(texts[id])
		do(id, s.view())
	}
}
