package egress

import (
	"sync/atomic"
	"time"
)

// An ID names one attempt, in replies and in records: ten characters of
// Crockford's base 32 that sort by time.
type ID uint64

const (
	idLength  = 10
	idTick    = 4 * time.Microsecond
	crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)

func (id ID) String() string {
	var b [idLength]byte
	for i := range b {
		b[idLength-1-i] = crockford[id>>(5*i)&31]
	}
	return string(b[:])
}

// time is when the ID was given, by the clock of the wall.
func (id ID) time() time.Time { return time.Unix(0, int64(id)*int64(idTick)) }

// idSource gives each ID once: the time in ticks, or the one after the last
// where many are asked for in one tick.
type idSource struct{ last atomic.Uint64 }

func (s *idSource) next(now time.Time) ID {
	tick := uint64(now.UnixNano()) / uint64(idTick)
	for {
		last := s.last.Load()
		id := max(tick, last+1)
		if s.last.CompareAndSwap(last, id) {
			return ID(id)
		}
	}
}
