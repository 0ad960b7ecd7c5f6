package sink

import (
	"context"
	"crypto/x509"
	"fmt"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/egressd/egressd/logs/export"
)

// A Set runs the sinks of one log. It is safe for concurrent use.
type Set struct {
	dir     string
	origin  export.Origin
	onError func(error)
	backoff backoff

	mu      sync.Mutex
	running map[string]*runningSink
	ending  map[string]<-chan struct{} // stopped sinks by name, whose send may still block
	applied bool
	left    int64 // result of Oldest after Stop

	newTarget func(*Config, export.Origin) (target, error)
}

// A runningSink is a sink and the means to end it.
type runningSink struct {
	*runner
	cancel context.CancelCauseFunc
	drain  context.CancelFunc
	ended  chan struct{}
}

// NewSet returns a Set without sinks for the log in dir. It calls onError for the first of several
// consecutive failures of a sink; onError must be safe for concurrent use.
func NewSet(dir string, origin export.Origin, onError func(error)) *Set {
	return &Set{dir: dir, origin: origin, onError: onError, backoff: usualBackoff, newTarget: newTarget,
		running: map[string]*runningSink{}, ending: map[string]<-chan struct{}{}, left: math.MaxInt64}
}

// OfLog says which log it is that the sinks send: every record that leaves carries its origin. Call it before Apply.
func (s *Set) OfLog(origin string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.origin.Log = origin
}

// Check reports configuration errors that can be found without a connection.
func Check(configs []Config) error {
	for _, c := range configs {
		if _, err := newTarget(&c, export.Origin{}); err != nil {
			return fmt.Errorf("sink %s: %w", c.Name, err)
		}
	}
	return nil
}

// Apply starts and stops sinks so that exactly these configurations run. A changed sink continues at its
// position. If Apply returns an error, nothing has changed. Apply waits for no receiver: if the old sink
// blocks in a send, the new one starts when that send returns.
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
	await(ends, cancelWithin)
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
	return reflect.DeepEqual(x, y) && sameRoots(a.Roots, b.Roots)
}

func sameRoots(a, b *x509.CertPool) bool { return a == b || a != nil && a.Equal(b) }

// start starts a sink. A blocked predecessor shares the state file, so the new sink waits for it; from is
// its position.
func (s *Set) start(c Config, from int64) error {
	t, err := s.newTarget(&c, s.origin)
	if err != nil {
		return err
	}
	r := &runningSink{
		runner: &runner{config: c, dir: s.dir, origin: s.origin, onError: s.onError, backoff: s.backoff, target: t},
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
		s.onError(fmt.Errorf("sink %s: what it sent to hangs; it goes on as it is configured now once that ends", c.Name))
	}
	s.running[c.Name] = r
	go func() {
		defer close(r.ended)
		if before != nil {
			<-before
			if err := r.begin(); err != nil {
				s.onError(fmt.Errorf("sink %s: %w; reload the policy to try again", c.Name, err))
				return
			}
		}
		r.run(ctx)
	}()
	return nil
}

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

func (r *runningSink) begin() error {
	if err := r.load(); err != nil {
		return err
	}
	r.save()
	return nil
}

func (r *runningSink) stop() {
	r.cancel(errStopped)
	r.drain()
}

// Stop ends all sinks. They may send until drain has passed. Stop does not wait for a receiver that blocks
// in the kernel.
func (s *Set) Stop(drain time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	s.Finish(ctx)
}

// Finish ends all sinks. A sink ends when it has sent the whole log, when a send fails, or with ctx.
func (s *Set) Finish(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []<-chan struct{}
	for _, r := range s.running {
		r.drain()
		all = append(all, r.ended)
	}
	awaitUntil(all, ctx.Done())
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

// stopsWithin is the time that a sink may take to save its position.
const stopsWithin = 5 * time.Second

// await waits until all channels are closed or within has passed.
func await(all []<-chan struct{}, within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	awaitUntil(all, ctx.Done())
}

// awaitUntil waits until all channels are closed, or late is.
func awaitUntil(all []<-chan struct{}, late <-chan struct{}) {
	for _, ended := range all {
		select {
		case <-ended:
		case <-late:
			return
		}
	}
}

// Oldest returns the sequence number of the first record that some sink has not sent, or a larger number
// if there is no such sink. Before the first Apply, known is false. Retention keeps the records from there
// on if it can. If it cannot, the sink reports how many records it missed.
func (s *Set) Oldest() (seq int64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.oldest()
}

// oldest requires mu.
func (s *Set) oldest() (seq int64, known bool) {
	seq = s.left
	for _, r := range s.running {
		seq = min(seq, r.owed())
	}
	return seq, s.applied
}

// A missedError reports records that were removed before they were sent.
type missedError struct {
	name  string
	count int64
}

func (e *missedError) Error() string {
	return fmt.Sprintf("sink %s: %d records were removed from the log before they were sent", e.name, e.count)
}
