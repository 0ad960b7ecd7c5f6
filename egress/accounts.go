package egress

import (
	"maps"
	"slices"
	"sync"

	"github.com/egressd/egressd/sandbox"
)

// accountsSwept is the number of accounts from which unused ones are searched for.
const accountsSwept = 64

// accounts are those of all sandboxes. They are safe for concurrent use.
type accounts struct {
	sandboxes *sandbox.Directory   // final
	onDrop    func(sandbox string) // final; called with mu held

	mu                     sync.Mutex // guards what follows
	bySandbox              map[string]*account
	swept                  int // accounts that were left by the last sweep
	droppedUp, droppedDown int64
}

// of returns the account of a sandbox.
func (s *accounts) of(sandbox string) *account {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.bySandbox[sandbox]
	if a == nil {
		if s.bySandbox == nil {
			s.bySandbox = map[string]*account{}
		}
		if len(s.bySandbox) > 2*s.swept+accountsSwept {
			s.sweep()
		}
		a = new(account)
		s.bySandbox[sandbox] = a
	}
	return a
}

// sweep drops the accounts of sandboxes that are gone: an attached sandbox may have had any name. s.mu is held.
func (s *accounts) sweep() {
	for name, a := range s.bySandbox {
		if !s.sandboxes.Expects(name) && a.retire() {
			s.droppedUp += a.meter.Up.Load()
			s.droppedDown += a.meter.Down.Load()
			delete(s.bySandbox, name)
			s.onDrop(name)
		}
	}
	s.swept = len(s.bySandbox)
}

func (s *accounts) all() []*account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.bySandbox))
}

// bytes returns the payload bytes of all sandboxes, with those that are gone.
func (s *accounts) bytes() (up, down int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	up, down = s.droppedUp, s.droppedDown
	for _, a := range s.bySandbox {
		up += a.meter.Up.Load()
		down += a.meter.Down.Load()
	}
	return up, down
}
