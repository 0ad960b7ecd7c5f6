package dns

import (
	"sync"

	"github.com/egressd/egressd/sandbox"
)

// shares divides a fixed number of slots among sandboxes. A sandbox gets another slot only while it holds fewer than are free.
// So one greedy sandbox ends with half of the slots, two with a third each, and a sandbox without a slot always gets
// one. It is safe for concurrent use.
type shares struct {
	most int // final

	mu   sync.Mutex // guards what follows
	open int
	held map[sandbox.Holder]int
}

// take takes one for h, where it may have one more.
func (s *shares) take(h sandbox.Holder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[h] >= s.most-s.open {
		return false
	}
	if s.held == nil {
		s.held = map[sandbox.Holder]int{}
	}
	s.open++
	s.held[h]++
	return true
}

// leave gives back one that h took.
func (s *shares) leave(h sandbox.Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.held[h]--; s.held[h] == 0 {
		delete(s.held, h)
	}
}
