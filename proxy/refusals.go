package proxy

import (
	"sync"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// refusals are records of refused connections that the log could not take at once. A goroutine that accepts
// leaves them here, and one of the server writes them. A client that hangs up does not suppress its record. The zero value
// is ready.
type refusals struct {
	mu      sync.Mutex // guards what follows
	waiting []func()
	unseen  map[refusedAt]int64 // refusals that were too many for waiting
	writing bool                // a goroutine writes
}

// refusedAt is what refusals have in common that are summed.
type refusedAt struct {
	listener string
	via      policy.Via
}

// refusalsMost is how many wait one by one, each with what the client has sent.
const refusalsMost = 4096

// add takes a record, or counts it if too many wait. first reports that nobody writes yet: the caller then has a
// goroutine call write.
func (r *refusals) add(at refusedAt, record func()) (taken, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = !r.writing
	r.writing = true
	if len(r.waiting) < refusalsMost {
		r.waiting = append(r.waiting, record)
		return true, first
	}
	if r.unseen == nil {
		r.unseen = map[refusedAt]int64{}
	}
	r.unseen[at]++
	return false, first
}

// write writes what waits until nothing does. A log that fails is not reported: nothing has passed.
func (r *refusals) write(gate *egress.Gate) {
	for {
		all, unseen := r.take()
		if len(all) == 0 && len(unseen) == 0 {
			return
		}
		for _, record := range all {
			record()
		}
		for at, n := range unseen {
			_ = gate.RefuseUnseen(sandbox.Peer{Listener: at.listener}, at.via, policy.TooManyFlows, n, "the log could not take a record of each of these connections in time")
		}
	}
}

// take empties r. If it is empty already, nobody writes any more.
func (r *refusals) take() (all []func(), unseen map[refusedAt]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, unseen = r.waiting, r.unseen
	r.waiting, r.unseen = nil, nil
	r.writing = len(all)+len(unseen) > 0
	return all, unseen
}

// recordRefusal has record, which refuses p, called for a goroutine that must not wait: at once if the log writes at once,
// else by another goroutine. A refusal beyond what may wait is only counted.
func (s *Server) recordRefusal(p sandbox.Peer, via policy.Via, record func()) {
	if s.Gate.Records.WritesAtOnce() {
		record()
		return
	}
	_, first := s.refusals.add(refusedAt{p.Listener, via}, record)
	if first {
		s.running.Go(func() { s.refusals.write(s.Gate) })
	}
}

func (s *Server) refuseOneMore(p sandbox.Peer) *egress.Refusal {
	return s.Gate.Refuse(p, policy.ViaUnknown, nil, policy.TooManyFlows, "too many connections of this sandbox, or of the address that it comes from, are open (limits.connections)")
}
