// Package carry moves the bytes of established tunnels between a client and an upstream. Each direction has a goroutine.
// While nothing moves, that goroutine holds neither a buffer nor a pipe. The package decides nothing and opens nothing.
//
//	var t carry.Tunnel
//	set.Begin(&t, client, upstream, owner, limits)
//	t.Down()      // the upstream may speak
//	t.Up(first)   // what the client said first may go, and what it says from now on
//
// The caller of Begin stands for the upward direction until it calls Up, Leave or Take.
package carry

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/record"
)

// An End says how a tunnel ended.
type End struct {
	Up, Down int64 // payload bytes passed on to the upstream and to the client
	Outcome  record.Outcome
}

// How a tunnel ends beside the outcomes of package record. No record has these.
const (
	Refused    record.Outcome = "refused"     // its owner refused what it was to carry
	OverBudget record.Outcome = "over-budget" // the client had more to send than it may
	taken      record.Outcome = "taken"       // its owner has the connections back
)

// Limits bound a tunnel in time, and say what counts its bytes. Tunnels share them, so they must not change.
type Limits struct {
	Idle  time.Duration // without a byte either way
	Life  time.Duration // from Begin to the end, whatever moves
	Meter *Meter        // nil: nobody counts
	// Turn, if it is set, is held in each system call on the client's connection, and in no other one. A client's packet
	// filter may run within these calls, for as long as it likes: then those that share a Turn wait for each other, and take
	// one thread.
	Turn *sync.Mutex
}

// A Meter counts the payload bytes of some tunnels, as they pass. It is safe for concurrent use.
type Meter struct{ Up, Down atomic.Int64 }

// An Owner is whom a tunnel belongs to.
type Owner interface {
	// Ended is called once, when both connections are closed and no goroutine carries, except after Take.
	Ended(End)

	// Spend is called before so many more bytes go to the upstream. If it returns false, they do not go, and the tunnel ends
	// as OverBudget.
	Spend(bytes int) bool
}

// A Watcher looks at each piece before the tunnel passes it on, until Watch returns true for over. If ok is false,
// the tunnel drops the piece and ends as Refused. b is valid during the call only. The two directions may call Watch
// at the same time.
type Watcher interface {
	Watch(up bool, b []byte) (over, ok bool)
}

// sweepEvery is how exact the times of tunnels are.
const sweepEvery = 500 * time.Millisecond

// A Set is tunnels that share buffers, pipes and a goroutine that looks at their times. The zero value is ready. It is
// safe for concurrent use.
type Set struct {
	buffers buffers
	pipes   pipes
	running sync.WaitGroup

	mu       sync.Mutex // guards what follows, and next and prev of each tunnel
	first    *Tunnel
	looks    *Tunnel // that the sweep looks at next; nil while there is no sweep
	sweeping bool    // a sweep runs, or timer will start one
	timer    *time.Timer
}

// Begin begins a tunnel in which nothing passes yet. t is zero, and owns both connections from now on.
func (s *Set) Begin(t *Tunnel, client, upstream net.Conn, owner Owner, limits *Limits) {
	t.set, t.owner, t.limits, t.parties = s, owner, limits, 1
	t.began = time.Now()
	t.quietSince = t.began
	t.client, t.upstream = side{conn: client, raw: socket(client)}, side{conn: upstream, raw: socket(upstream)}
	t.up = stream{tunnel: t, from: &t.client, to: &t.upstream}
	t.down = stream{tunnel: t, from: &t.upstream, to: &t.client}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.next = s.first; t.next != nil {
		t.next.prev = t
	}
	s.first = t
	if !s.sweeping {
		s.sweeping = true
		s.running.Add(1)
		s.timer = time.AfterFunc(sweepEvery, s.sweep)
	}
}

// Wait returns when no tunnel is left.
func (s *Set) Wait() { s.running.Wait() }

func (s *Set) remove(t *Tunnel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looks == t {
		s.looks = t.next
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		s.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.next, t.prev = nil, nil
	if s.first == nil && s.timer.Stop() {
		s.endSweepsLocked()
	}
}

// endSweepsLocked is called with s.mu held, once no tunnel is left and no sweep will start.
func (s *Set) endSweepsLocked() {
	s.sweeping = false
	s.running.Done()
}

// sweep ends tunnels whose time is over. It runs again until there are none.
func (s *Set) sweep() {
	now := time.Now()
	s.mu.Lock()
	s.looks = s.first
	s.mu.Unlock()
	for more := true; more; {
		more = s.look(now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == nil {
		s.endSweepsLocked()
		return
	}
	s.timer.Reset(sweepEvery)
}

// looksAtOnce is how many tunnels are looked at while others wait for the lock.
const looksAtOnce = 1024

// look looks at some of the tunnels of a sweep, and reports whether others are left.
func (s *Set) look(now time.Time) (more bool) {
	var some [looksAtOnce]*Tunnel
	n := 0
	s.mu.Lock()
	for ; s.looks != nil && n < len(some); n++ {
		some[n], s.looks = s.looks, s.looks.next
	}
	more = s.looks != nil
	s.mu.Unlock()
	for _, t := range some[:n] {
		if why := t.overdue(now); why != "" {
			t.End(why)
		}
	}
	return more
}
