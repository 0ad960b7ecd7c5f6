package signals

import (
	"hash/maphash"
	"math"
	"math/bits"
)

// A spread is how much numbers differ (Welford's method).
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

// merge takes in another one (Chan's method).
func (s *spread) merge(o spread) {
	if o.n == 0 {
		return
	}
	n, d := s.n+o.n, o.mean-s.mean
	s.m2 += o.m2 + d*d*float64(s.n)*float64(o.n)/float64(n)
	s.mean += d * float64(o.n) / float64(n)
	s.n = n
}

// variation is the standard deviation divided by the mean; of few numbers it is
// infinite.
func (s *spread) variation() float64 {
	if s.n < 2 || s.mean <= 0 {
		return math.Inf(1)
	}
	return math.Sqrt(s.m2/float64(s.n)) / s.mean
}

// A distinct counts different texts by a bitmap (linear counting): to within a few
// percent up to some thousands, and no more than that.
type distinct struct{ set [32]uint64 }

const distinctBits = 32 * 64

var seed = maphash.MakeSeed()

// add reports whether the text is a new one, which it may be without its being said.
func (d *distinct) add(text string) bool {
	h := maphash.String(seed, text) % distinctBits
	before := d.set[h/64]
	d.set[h/64] |= 1 << (h % 64)
	return d.set[h/64] != before
}

func (d *distinct) count() float64 {
	zero := distinctBits
	for _, w := range d.set {
		zero -= bits.OnesCount64(w)
	}
	return -distinctBits * math.Log(math.Max(float64(zero), 0.5)/distinctBits)
}

// scaled is 0 at from, most at to, and grows with the logarithm in between.
func scaled(x, from, to float64, most int) int {
	if x <= from {
		return 0
	}
	return min(most, int(float64(most)*math.Log(x/from)/math.Log(to/from)))
}
