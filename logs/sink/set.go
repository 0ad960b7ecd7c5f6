package sink

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/egressd/egressd/logs/export"
)

// A Set is the sinks of one log. It is safe for concurrent use.
type Set struct {
	dir      string
	origin   export.Origin
	complain func(error)
	patience patience

	mu      sync.Mutex
	running map[string]*running
	ending  map[string]<-chan struct{} // by name: what was stopped last, and may still hang
	applied bool
	left    int64 // once it was stopped: what Oldest was

	newTarget func(*Config, export.Origin) (target, error)
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
	return &Set{dir: dir, origin: origin, complain: complain, patience: usualPatience, newTarget: newTarget,
		running: map[string]*running{}, ending: map[string]<-chan struct{}{}, left: math.MaxInt64}
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
// are gone, and has those that changed go on as they are now. An error changes nothing. It
// waits for no receiver: where one hangs, and cannot be told to stop, its sink goes on as
// it is now once that is over.
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
	s.applied = true
	before := map[string]int64{}
	var ends []<-chan struct{}
	for name, r := range s.running {
		if c, ok := wanted[name]; !ok || !same(&c, &r.config) {
			r.stop()
			ends = append(ends, r.ended)
			s.ending[name], before[name] = r.ended, r.next()
			delete(s.running, name)
		}
	}
	await(ends, letGo)
	for _, c := range configs {
		if s.running[c.Name] != nil {
			continue
		}
		if err := s.start(c, before[c.Name]); err != nil {
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

// start begins with a sink. Where the one before it still hangs, it was at the record
// numbered from, and the new one waits for it: they have one state.
func (s *Set) start(c Config, from int64) error {
	t, err := s.newTarget(&c, s.origin)
	if err != nil {
		return err
	}
	r := &running{
		runner: &runner{config: c, dir: s.dir, origin: s.origin, complain: s.complain, patience: s.patience, target: t},
		ended:  make(chan struct{}),
	}
	r.draining, r.drain = context.WithCancel(context.Background())
	ctx, cancel := context.WithCancelCause(context.Background())
	r.cancel = cancel
	before := s.ending[c.Name]
	if over(before) {
		delete(s.ending, c.Name)
		if err := r.begin(); err != nil {
			return err
		}
		before = nil
	} else {
		r.state.Next = from
		s.complain(fmt.Errorf("sink %s: what it sent to hangs; it goes on as it is configured now once that ends", c.Name))
	}
	s.running[c.Name] = r
	go func() {
		defer close(r.ended)
		if before != nil {
			<-before
			if err := r.begin(); err != nil {
				s.complain(fmt.Errorf("sink %s: %w; reload the policy to try again", c.Name, err))
				return
			}
		}
		r.run(ctx)
	}()
	return nil
}

// over reports whether what a channel stands for has ended, or never was.
func over(ended <-chan struct{}) bool {
	if ended == nil {
		return true
	}
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// begin finds out where the sink was.
func (r *running) begin() error {
	if err := r.load(); err != nil {
		return err
	}
	r.save()
	return nil
}

// stop has the sink end as soon as its receiver lets it.
func (r *running) stop() {
	r.cancel(errStopped)
	r.drain()
}

// Stop ends all sinks. Those that have something to send have until drain is over. One
// whose receiver hangs in the kernel is not waited for.
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
		r.stop()
	}
	await(all, stopsWithin)
	s.left, _ = s.oldest()
	for name, r := range s.running {
		s.ending[name] = r.ended
	}
	clear(s.running)
}

// stopsWithin is how long a sink may take to put away where it is.
const stopsWithin = 5 * time.Second

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

// Oldest returns the seq of the first record that some sink has not yet sent, or a larger
// one than any where there is no such sink, and whether that is known: before the first
// Apply it is not. Whoever removes records from the log keeps those from there on,
// unless something demands it: the sink says how many it missed then.
func (s *Set) Oldest() (seq int64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.oldest()
}

// oldest is called with mu held.
func (s *Set) oldest() (seq int64, known bool) {
	seq = s.left
	for _, r := range s.running {
		seq = min(seq, r.next())
	}
	return seq, s.applied
}

// A missedError says that records were removed before they were sent.
type missedError struct {
	name  string
	count int64
}

func (e *missedError) Error() string {
	return fmt.Sprintf("sink %s: %d records were removed from the log before they were sent", e.name, e.count)
}
