package signals

import (
	"math"
	"time"

	"github.com/egressd/egressd/egress"
)

// traffic is flows that mostly send.
type traffic struct {
	n           int64
	up, down    int64
	sizes       spread // bytes up
	of          sizes
	bands       [trainBands]band
	gaps        spread // seconds between two of them
	first, last time.Time
	since, till int64 // the first and the last by their place in the log, counted in flows
	occasions   int64 // with an hour or more in between
	windows     [2]window
	greatest    int64 // bytes up in the window with most, and
	largest     int64 // in the flow with most
	quarters    sizes // of a day, by what was sent in each
	days        series
}

// A window is a quarter of a day. Two of them overlap, so that what takes half of one is within one or the other.
type window struct{ number, up int64 }

const windowSeconds = 6 * 3600

// add returns how much there is in the window of a time, in seconds.
func (w *window) add(at, up int64) int64 {
	if n := at / windowSeconds; n != w.number {
		*w = window{number: n}
	}
	w.up += up
	return w.up
}

// A series is how much there was on each day: the days are summed as they end.
type series struct {
	day, up     int64 // now
	n           int64 // days in all
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

// close takes the day in that is at its end.
func (s *series) close() {
	if s.n == 0 {
		return
	}
	if s.most = max(s.most, s.up); s.n == 1 || s.up < s.least {
		s.least = s.up
	}
}

// daily is on how many days there were uploads, and whether it was about as much on each.
func (t *traffic) daily() (days int64, alike bool) {
	s := t.days
	s.close()
	return s.n, s.most < 8*s.least
}

func (t *traffic) add(r *egress.Record, up, place int64) {
	if t.n++; t.n == 1 {
		t.since = place
	}
	t.first, t.till = earliest(t.first, r.Time), place
	t.up += r.Bytes.Up
	t.down += r.Bytes.Down
	t.sizes.add(float64(r.Bytes.Up))
	t.of.add(up)
	t.bands[bandOf(classOf(up))].add(r.Time.Unix(), up)
	t.largest = max(t.largest, up)
	if t.last.IsZero() || r.Time.Sub(t.last) >= time.Hour {
		t.occasions++
	}
	t.quarter(r.Time.Unix(), up)
	t.days.add(r.Time.Unix(), up)
	if !t.last.IsZero() {
		t.gaps.add(math.Abs(r.Time.Sub(t.last).Seconds()))
	}
	t.last = r.Time
}

// quarter keeps the sums of the quarters of a day: the one that is now stands in its class already.
func (t *traffic) quarter(at, up int64) {
	before := t.windows[0]
	if at/windowSeconds == before.number {
		t.quarters[classOf(before.up)]--
	}
	for i := range t.windows {
		t.greatest = max(t.greatest, t.windows[i].add(at+int64(i)*windowSeconds/2, up))
	}
	t.quarters[classOf(t.windows[0].up)]++
}

func (t *traffic) merge(o *traffic) {
	if t.n == 0 || o.n > 0 && o.since < t.since {
		t.since = o.since
	}
	t.till = max(t.till, o.till)
	t.occasions, t.greatest, t.largest = max(t.occasions, o.occasions), max(t.greatest, o.greatest), max(t.largest, o.largest)
	t.n, t.up, t.down = t.n+o.n, t.up+o.up, t.down+o.down
	t.sizes.merge(o.sizes)
	t.of.merge(&o.of)
	for i := range o.bands {
		t.bands[i].merge(&o.bands[i])
	}
	t.gaps.merge(o.gaps)
	t.first, t.last = earliest(t.first, o.first), latest(t.last, o.last)
}
