package signals

import (
	"math"
	"time"

	"github.com/egressd/egressd/record"
)

// traffic sums flows that mostly send.
type traffic struct {
	n           int64
	up, down    int64
	sizes       spread // bytes up of each flow
	of          sizes
	bands       [trainBands]band
	gaps        spread // seconds between two flows
	first, last time.Time
	since, till int64 // indexes of the first and last flow among all flows
	occasions   int64 // groups of flows separated by an hour or more
	windows     [2]window
	greatest    window // that with the most bytes up
	largest     int64  // maximum bytes up in a flow
	before      int64  // bytes up of the flow before
	quarters    sizes  // bytes up of each quarter of a day
	days        series
}

// A window is a quarter of a day. Two windows overlap by half, so that traffic of half a window's length
// falls entirely into one of them.
type window struct {
	number, up  int64
	first, last int64 // times in seconds
}

const windowSeconds = 6 * 3600

// add counts the bytes of a flow that began at a time and took so long, in seconds. Windows begin earlier by shift.
func (w *window) add(at, took, up, shift int64) {
	if n := (at + shift) / windowSeconds; n != w.number {
		*w = window{number: n, first: at}
	}
	w.up += up
	w.last = max(w.last, at+took)
}

// A series tracks the daily minimum and maximum. A day is counted when it ends.
type series struct {
	day, up     int64 // current day and its bytes
	n           int64 // number of days
	least, most int64
}

const daySeconds = 24 * 3600

func (s *series) add(at, up int64) {
	if day := at / daySeconds; s.n == 0 || day != s.day {
		s.close()
		s.day, s.up = day, 0
		s.n++
	}
	s.up += up
}

// close counts the current day.
func (s *series) close() {
	if s.n == 0 {
		return
	}
	if s.most = max(s.most, s.up); s.n == 1 || s.up < s.least {
		s.least = s.up
	}
}

// daily returns the number of days with uploads and whether all days had similar amounts.
func (t *traffic) daily() (days int64, alike bool) {
	s := t.days
	s.close()
	return s.n, s.most < 8*s.least
}

func (t *traffic) add(r *record.Record, up, index int64) {
	if t.n++; t.n == 1 {
		t.since = index
	}
	t.first, t.till = earliest(t.first, r.Time), index
	t.up += r.Bytes.Up
	t.down += r.Bytes.Down
	t.sizes.add(float64(r.Bytes.Up))
	t.of.add(up)
	t.bands[bandOf(classOf(up))].add(r.Time.Unix(), up, t.resends(r.Time, up))
	t.largest = max(t.largest, up)
	if t.last.IsZero() || r.Time.Sub(t.last) >= time.Hour {
		t.occasions++
	}
	t.quarter(r.Time.Unix(), r.Duration/1000, up)
	t.days.add(r.Time.Unix(), up)
	if !t.last.IsZero() {
		t.gaps.add(math.Abs(r.Time.Sub(t.last).Seconds()))
	}
	t.last = r.Time
}

// Turns of a conversation follow each other within turnSeconds. Each is as long as the one before, and up to turnGrowth longer.
const (
	turnSeconds = 180
	turnGrowth  = 1.3
	turnLeast   = 64 // bytes
)

// resends reports whether a flow may repeat the one before and add to it, as requests to a model do: each has the whole conversation.
func (t *traffic) resends(at time.Time, up int64) bool {
	before := t.before
	t.before = up
	return !t.last.IsZero() && at.Sub(t.last) < turnSeconds*time.Second && up >= before+turnLeast && float64(up) < turnGrowth*float64(before)
}

// quarter updates the windows. The current quarter of a day is already counted in quarters and moves to
// its new class.
func (t *traffic) quarter(at, took, up int64) {
	before := t.windows[0]
	if at/windowSeconds == before.number {
		t.quarters[classOf(before.up)]--
	}
	for i := range t.windows {
		t.windows[i].add(at, took, up, int64(i)*windowSeconds/2)
		if t.windows[i].up > t.greatest.up {
			t.greatest = t.windows[i]
		}
	}
	t.quarters[classOf(t.windows[0].up)]++
}

func (t *traffic) merge(o *traffic) {
	if t.n == 0 || o.n > 0 && o.since < t.since {
		t.since = o.since
	}
	t.till = max(t.till, o.till)
	t.occasions, t.largest = max(t.occasions, o.occasions), max(t.largest, o.largest)
	if o.greatest.up > t.greatest.up {
		t.greatest = o.greatest
	}
	t.n, t.up, t.down = t.n+o.n, t.up+o.up, t.down+o.down
	t.sizes.merge(o.sizes)
	t.of.merge(&o.of)
	for i := range o.bands {
		t.bands[i].merge(&o.bands[i])
	}
	t.gaps.merge(o.gaps)
	t.first, t.last = earliest(t.first, o.first), latest(t.last, o.last)
}
