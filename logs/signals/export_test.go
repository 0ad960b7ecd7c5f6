package signals

import (
	"math/rand/v2"

	"github.com/egressd/egressd/record"
)

// WorkshopLog is a day of a workshop, in about n decisions.
func WorkshopLog(seed uint64, n int) []*record.Record {
	w := &workshop{Rand: rand.New(rand.NewPCG(seed, 2))}
	w.ordinary(n)
	return w.sorted()
}

// OfficeLog is some days of an office.
func OfficeLog(seed uint64, n int) []*record.Record {
	o := &office{workshop{Rand: rand.New(rand.NewPCG(seed, 4))}}
	o.ordinary(n)
	return o.sorted()
}

// ordinaryMost is what nothing ordinary is above.
const ordinaryMost = 45
