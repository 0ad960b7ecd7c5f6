package sink

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/egressd/egressd/records/export"
)

// A Set is the sinks of one log. It is safe for concurrent use.
type Set struct {
	dir      string
	origin   export.Origin
	complain func(error)
	patience patience

	mu      sync.Mutex
	running map[string]*running
}

// running is a sink at work, and how to end it.
type running struct {
	*runner
	cancel context.CancelCauseFunc
	drain  context.CancelFunc
	ended  chan struct{}
}

// NewSet returns a Set without sinks for the log in dir. What goes wrong is handed
// to complain, which may be called from several goroutines: the first of several
// failures in a row.
func NewSet(dir string, origin export.Origin, complain func(error)) *Set {
	return &Set{dir: dir, origin: origin, complain: complain, patience: usualPatience, running: map[string]*running{}}
}

// Check reports what is wrong with configurations, as far as that can be known
// without a connection.
func Check(configs []Config) error {
	for _, c := range configs {
		if _, err := newTarget(&c, export.Origin{}); err != nil {
			return fmt.Errorf("sink %s: %w", c.Name, err)
		}
	}
	return nil
}

// Apply has exactly these sinks run: it starts those that are new, ends those that
// are gone, and has those that changed go on as they are now. An error changes
// nothing.
func (s *Set) Apply(configs []Config) error {
	if err := Check(configs); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[string]Config{}
	for _, c := range configs {
		wanted[c.Name] = c
	}
	for name, r := range s.running {
		if c, ok := wanted[name]; !ok || !same(&c, &r.config) {
			r.end()
			delete(s.running, name)
		}
	}
	for _, c := range configs {
		if s.running[c.Name] != nil {
			continue
		}
		if err := s.start(c); err != nil {
			return fmt.Errorf("sink %s: %w", c.Name, err)
		}
	}
	return nil
}

func same(a, b *Config) bool {
	x, y := *a, *b
	x.Roots, y.Roots = nil, nil
	return reflect.DeepEqual(x, y) && (a.Roots == b.Roots || a.Roots != nil && a.Roots.Equal(b.Roots))
}

func (s *Set) start(c Config) error {
	t, err := newTarget(&c, s.origin)
	if err != nil {
		return err
	}
	r := &running{
		runner: &runner{config: c, dir: s.dir, origin: s.origin, complain: s.complain, patience: s.patience, target: t},
		ended:  make(chan struct{}),
	}
	r.draining, r.drain = context.WithCancel(context.Background())
	if err := r.load(); err != nil {
		return err
	}
	r.save()
	ctx, cancel := context.WithCancelCause(context.Background())
	r.cancel = cancel
	s.running[c.Name] = r
	go func() {
		defer close(r.ended)
		r.run(ctx)
	}()
	return nil
}

func (r *running) end() {
	r.cancel(errStopped)
	r.drain()
	<-r.ended
}

// Stop ends all sinks. Those that have something to send have until drain is over.
func (s *Set) Stop(drain time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []<-chan struct{}
	for _, r := range s.running {
		r.drain()
		all = append(all, r.ended)
	}
	await(all, drain)
	for _, r := range s.running {
		r.end()
	}
	clear(s.running)
}

// await waits until all are closed, but no longer than within.
func await(all []<-chan struct{}, within time.Duration) {
	late := time.NewTimer(within)
	defer late.Stop()
	for _, ended := range all {
		select {
		case <-ended:
		case <-late.C:
			return
		}
	}
}

// Oldest returns the seq of the first record that some sink has not yet sent, and
// whether there is a sink. Whoever removes records from the log keeps those from
// there on, unless something demands it: the sink says how many it missed then.
func (s *Set) Oldest() (seq int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.running {
		if next := r.next(); !ok || next < seq {
			seq, ok = next, true
		}
	}
	return seq, ok
}

// A missedError says that records were removed before they were sent.
type missedError struct {
	name  string
	count int64
}

func (e *missedError) Error() string {
	return fmt.Sprintf("sink %s: %d records were removed from the log before they were sent", e.name, e.count)
}
