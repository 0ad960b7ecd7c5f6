package signals

import (
	"math"
	"time"
)

const (
	weekHours    = 7 * 24
	workingHours = 6 // fewer say nothing about when somebody works
)

// hours are numbers of flows by the hour of the week. The zero value is empty and small.
type hours struct {
	n  int64 // in all
	of *[weekHours]uint32
}

func (h *hours) add(t time.Time, n int64) {
	if h.of == nil {
		h.of = new([weekHours]uint32)
	}
	h.n += n
	i := (t.Unix()/3600%weekHours + weekHours) % weekHours
	h.of[i] += uint32(min(n, math.MaxInt32))
}

func (h *hours) merge(o *hours) {
	if o.of == nil {
		return
	}
	if h.of == nil {
		h.of = new([weekHours]uint32)
	}
	h.n += o.n
	for i, n := range o.of {
		h.of[i] += n
	}
}

// idleShare is the part of h that fell in hours in which all the rest, of which it is a part, is
// as good as idle: that hour and those beside it have less than a twentieth of what
// a working hour has. It is 0 where there is no rest to speak of.
func (h *hours) idleShare(all *hours) float64 {
	if h.of == nil || all.of == nil {
		return 0
	}
	var others [weekHours]float64
	var own, sum, busy float64
	for i := range others {
		others[i] = float64(all.of[i]) - float64(h.of[i])
		own += float64(h.of[i])
		sum += others[i]
		if others[i] > 0 {
			busy++
		}
	}
	if busy < workingHours || sum < 10*workingHours || own == 0 {
		return 0
	}
	rest, idle := sum/busy/20, 0.0
	for i := range others {
		if max(others[i], others[(i+weekHours-1)%weekHours], others[(i+1)%weekHours]) <= rest {
			idle += float64(h.of[i])
		}
	}
	return idle / own
}

// A pulse is how regular the gaps between flows are: they are counted by their
// logarithm, so that what happens in between, once or in a burst, does not hide a
// timer, as it would in a variance.
type pulse struct {
	n           int64
	first, last time.Time
	gaps        *[gapClasses]uint32
}

const (
	gapClasses = 72 // four in each doubling
	leastGap   = 5  // seconds: shorter ones are of one burst
	gapWindow  = 4  // classes: gaps of which none is more than twice another
)

func (p *pulse) add(at time.Time) {
	p.n++
	if p.first.IsZero() {
		p.first = at
	}
	gap := math.Abs(at.Sub(p.last).Seconds())
	seen := !p.last.IsZero()
	if seen && gap < leastGap {
		return
	}
	p.last = at
	if !seen {
		return
	}
	if p.gaps == nil {
		p.gaps = new([gapClasses]uint32)
	}
	p.gaps[min(gapClasses-1, int(4*math.Log2(gap/leastGap)))]++
}

func (p *pulse) merge(o *pulse) {
	p.n += o.n
	p.first, p.last = earliest(p.first, o.first), latest(p.last, o.last)
	if o.gaps == nil {
		return
	}
	if p.gaps == nil {
		p.gaps = new([gapClasses]uint32)
	}
	for i, n := range o.gaps {
		p.gaps[i] += n
	}
}

// regular returns how many gaps there are, which part of them is alike, and how long those are
// about.
func (p *pulse) regular() (n int64, share float64, about time.Duration) {
	if p.gaps == nil {
		return 0, 0, 0
	}
	var best, at int64
	for i := range p.gaps {
		n += int64(p.gaps[i])
		var in int64
		for _, c := range p.gaps[i:min(gapClasses, i+gapWindow)] {
			in += int64(c)
		}
		if in > best {
			best, at = in, int64(i)
		}
	}
	if n == 0 {
		return 0, 0, 0
	}
	middle := leastGap * math.Exp2((float64(at)+gapWindow/2)/4)
	return n, float64(best) / float64(n), time.Duration(middle * float64(time.Second)).Round(time.Second)
}
