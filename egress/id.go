package egress

import (
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/record"
)

// An idSource gives each ID once: the present time, or the tick after the last ID if several are requested
// within one tick.
type idSource struct{ last atomic.Uint64 }

func (s *idSource) next(now time.Time) record.ID {
	tick := uint64(now.UnixNano()) / uint64(record.IDTick)
	for {
		last := s.last.Load()
		id := max(tick, last+1)
		if s.last.CompareAndSwap(last, id) {
			return record.ID(id)
		}
	}
}
