package signals

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// A spread measures the variance of numbers (Welford's method).
type spread struct {
	n        int64
	mean, m2 float64
}

func (s *spread) add(x float64) {
	s.n++
	d := x - s.mean
	s.mean += d / float64(s.n)
	s.m2 += d * (x - s.mean)
}

// merge adds the numbers of o (Chan's method).
func (s *spread) merge(o spread) {
	if o.n == 0 {
		return
	}
	n, d := s.n+o.n, o.mean-s.mean
	s.m2 += o.m2 + d*d*float64(s.n)*float64(o.n)/float64(n)
	s.mean += d * float64(o.n) / float64(n)
	s.n = n
}

// variation returns the standard deviation divided by the mean. It is infinite for fewer than two numbers.
func (s *spread) variation() float64 {
	if s.n < 2 || s.mean <= 0 {
		return math.Inf(1)
	}
	return math.Sqrt(s.m2/float64(s.n)) / s.mean
}

// A distinct estimates the number of different texts with a bitmap (linear counting). The estimate is
// accurate to a few percent up to some thousand texts.
type distinct struct{ set [32]uint64 }

const distinctBits = 32 * 64

// add reports whether the text is new. A hash collision makes a new text look old. The seed comes from the log:
// each reading has the same collisions, and no attacker can choose texts that collide in all logs.
func (d *distinct) add(seed uint64, text string) bool {
	h := hashed(seed, text) % distinctBits
	before := d.set[h/64]
	d.set[h/64] |= 1 << (h % 64)
	return d.set[h/64] != before
}

// hashed is FNV-1a, begun with a seed, and mixed at the end.
func hashed(seed uint64, text string) uint64 {
	h := seed ^ 14695981039346656037
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	return h ^ h>>33
}

func (d *distinct) count() float64 {
	zero := distinctBits
	for _, w := range d.set {
		zero -= bits.OnesCount64(w)
	}
	return -distinctBits * math.Log(math.Max(float64(zero), 0.5)/distinctBits)
}

// exactUntil is how many texts a [distinct] counts exactly, but for a rare collision.
const exactUntil = 20

// about writes the estimate of a [distinct], and says that it is one.
func about(n float64) string {
	if n < exactUntil {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("about %.0f", n)
}

// scaled returns 0 at from and limit at to, and grows with the logarithm in between.
func scaled(x, from, to float64, most int) int {
	if x <= from {
		return 0
	}
	return min(most, int(float64(most)*math.Log(x/from)/math.Log(to/from)))
}

const (
	weekHours    = 7 * 24
	workingHours = 6 // fewer busy hours do not show working hours
)

// hours counts flows by hour of the week. The zero value is empty and small.
type hours struct {
	n  int64 // sum of all hours
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

// idleShare returns the share of h that falls into idle hours of all, which includes h. An hour is idle if
// it and its neighbours have less than a twentieth of the average busy hour. Without enough other traffic
// the share is 0.
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

// A pulse measures how regular the gaps between flows are. It counts gaps by logarithm, so that a few
// flows in between do not hide a timer. They would in a variance.
type pulse struct {
	n           int64
	first, last time.Time
	gaps        *[gapClasses]uint32
}

const (
	gapClasses = 72 // four per doubling
	leastGap   = 5  // seconds; shorter gaps belong to one burst
	gapWindow  = 4  // classes; the longest gap is at most twice the shortest
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

// regular returns the number of gaps, the share of gaps with similar length, and that length.
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

// A timeline counts flows in time slots of equal length. The length doubles as the log grows. The zero
// value is empty, and stays small while there are few flows.
type timeline struct {
	early []int64 // times in seconds, until there are few
	base  int64   // first slot, in slot lengths since 1970
	scale uint8   // slot length is 1<<scale seconds
	of    *[slots]uint32
}

const slots = 64

func (t *timeline) add(at int64) {
	if t.of == nil && len(t.early) < few {
		t.early = append(t.early, at)
		return
	}
	if t.of == nil {
		t.of, t.base = new([slots]uint32), t.early[0]
		for _, e := range t.early {
			t.put(e, 1)
		}
		t.early = nil
	}
	t.put(at, 1)
}

func (t *timeline) put(at int64, n uint32) {
	for {
		switch i := at>>t.scale - t.base; {
		case i >= slots || i < 0 && -i > t.free():
			t.coarsen()
		case i < 0:
			copy(t.of[-i:], t.of[:])
			clear(t.of[:-i])
			t.base += i
		default:
			t.of[i] += n
			return
		}
	}
}

// free returns the number of unused slots at the end.
func (t *timeline) free() (n int64) {
	for i := slots - 1; i >= 0 && t.of[i] == 0; i-- {
		n++
	}
	return n
}

// coarsen merges pairs of slots.
func (t *timeline) coarsen() {
	var of [slots]uint32
	base := t.base >> 1
	for i, n := range t.of {
		if n > 0 {
			of[(t.base+int64(i))>>1-base] += n
		}
	}
	*t.of, t.base, t.scale = of, base, t.scale+1
}

func (t *timeline) merge(o *timeline) {
	for _, e := range o.early {
		t.add(e)
	}
	if o.of == nil {
		return
	}
	for i, n := range o.of {
		if n > 0 {
			at := (o.base + int64(i)) << o.scale
			for ; n > 0 && t.of == nil; n-- {
				t.add(at)
			}
			if n > 0 {
				t.put(at, n)
			}
		}
	}
}

// in returns the counts of t in the slots of o. Timeline o must begin no later than t and be no finer.
func (t *timeline) in(o *timeline) (of [slots]float64) {
	put := func(at int64, n float64) { of[min(slots-1, max(0, at>>o.scale-o.base))] += n }
	for _, e := range t.early {
		put(e, 1)
	}
	if t.of != nil {
		for i, n := range t.of {
			put((t.base+int64(i))<<t.scale, float64(n))
		}
	}
	return of
}
