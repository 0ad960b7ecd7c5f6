package sink

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/internal/durable"
)

// A position is where a sink is in the log. It keeps the state and its file.
type position struct {
	mu      sync.Mutex
	state   State
	reached int64     // highest Next so far
	dirty   bool      // changed since it was saved
	saved   time.Time // time of the last save
}

func (p *position) next() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Next
}

// owed returns the sequence number of the first record that the receiver may lack and will get.
func (p *position) owed() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Min(append(slices.Clone(p.state.Aside), p.state.Next))
}

// aside returns how many records were refused.
func (p *position) aside() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.state.Aside)
}

func (p *position) refused() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.state.Aside)
}

func (p *position) change(do func(*State)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do(&p.state)
	p.dirty = true
}

// backTo moves back to the record with sequence number from, to send it again.
func (p *position) backTo(from int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reached = max(p.reached, p.state.Next)
	p.state.Next = min(p.state.Next, from)
}

// skip moves forward to the record with sequence number to, because the log no longer holds the records before it.
// It returns the number of skipped records that were never sent. Each gap counts once.
func (p *position) skip(to int64) (missed int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	missed = max(0, to-max(p.state.Next, p.reached))
	p.state.Next, p.state.Missed = to, p.state.Missed+missed
	p.reached = max(p.reached, to)
	p.dirty = true
	return missed
}

// load determines the position to continue at: after the newest mark that the log holds. If it holds none,
// it is a different log and is sent from its beginning. Repeated records are better than lost ones.
func (s *runner) load() error {
	if err := os.MkdirAll(Folder(s.dir), 0o700); err != nil {
		return err
	}
	stored := s.stored()
	s.change(func(p *State) { *p = stored })
	return nil
}

func (s *runner) stored() State {
	state := State{Name: s.config.Name, Type: s.config.Type, To: s.config.receiver(), Format: s.config.Format, Origin: s.origin.Log, Lossy: strings.HasPrefix(s.config.Address, "udp:")}
	old, err := readState(statePath(s.dir, s.config.Name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return state
	case err != nil:
		s.onError(fmt.Errorf("sink %s: %w; it begins with the oldest record", s.config.Name, err))
		return state
	}
	state.Sent, state.SentAt, state.Rejected, state.Missed = old.Sent, old.SentAt, old.Rejected, old.Missed
	s.accepted = old.Sent > 0 && old.To == state.To
	for _, mark := range old.Marks {
		if mark.holds(s.dir) {
			state.Next = min(old.Next, mark.Seq+1)
			state.Marks, state.Aside = []Mark{mark}, old.Aside
			return state
		}
	}
	if len(old.Marks) > 0 {
		s.onError(fmt.Errorf("sink %s: what it sent last is not in the log; it begins with the oldest record", s.config.Name))
	}
	return state
}

// saveDue returns the time until the state may be saved. It is negative if nothing changed.
func (p *position) saveDue() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dirty {
		return -1
	}
	return max(0, saveEvery-time.Since(p.saved))
}

func (s *runner) saveIfDue() {
	if s.saveDue() == 0 {
		s.save()
	}
}

// save writes the state. A failure is only reported, since it merely causes repeated records after a
// restart.
func (s *runner) save() {
	s.mu.Lock()
	text, err := json.Marshal(s.state)
	s.dirty, s.saved = false, time.Now()
	s.mu.Unlock()
	if err == nil {
		err = durable.Replace(statePath(s.dir, s.config.Name), append(text, '\n'), 0o600)
	}
	if err != nil {
		s.onError(fmt.Errorf("sink %s: where it is cannot be kept: %w", s.config.Name, err))
	}
}
