// Package relay moves the bytes of established tunnels. One [Loop] serves
// thousands of them from a single goroutine: a tunnel is two descriptors and
// a small struct, holds no buffer and no pipe while it waits, and borrows one
// only while it is busy.
//
// It decides nothing and opens nothing: descriptors are given to it, and a
// [Keeper] judges the client's first bytes before any of them goes on.
//
//	loop, err := relay.NewLoop()
//	go loop.Run()
//	loop.Post(func() { loop.Carry(&tunnel, client, upstream, nil, keeper, limits) })
//
// Everything except [Loop.Post] and [Loop.Close] belongs to the loop's own
// goroutine: callbacks run there, and must not block.
package relay

import (
	"sync"
	"time"
)

const (
	bufferSize   = 64 << 10
	eventsAtOnce = 256
	callsAtOnce  = 64   // of one kind in a round: posted functions, timers, tunnels whose time is over
	looksAtOnce  = 4096 // at tunnels whose time may be over, in a round
	sweepEvery   = 500 * time.Millisecond
)

// Events says what a descriptor may be ready for. Readiness is a hint: the
// one who is told tries, and may find nothing.
type Events uint32

// The events, with the numbers of epoll_ctl(2) on every system.
const (
	CanRead   Events = 0x1
	canWrite  Events = 0x4
	failed    Events = 0x8
	ended     Events = 0x10   // both halves
	readEnded Events = 0x2000 // the other side sends no more
)

// Readable reports whether a read may bring bytes, an end or an error.
func (e Events) Readable() bool {
	return e&(CanRead|readEnded|ended|failed) != 0
}

// Writable reports whether a write may go through or bring an error.
func (e Events) Writable() bool {
	return e&(canWrite|ended|failed) != 0
}

// Hangup reports whether the other side sends no more, or an error is pending.
func (e Events) Hangup() bool {
	return e&(readEnded|ended|failed) != 0
}

// A Handler is told when its descriptor may be ready.
type Handler interface {
	Ready(Events)
}

// Broken reports whether both halves are over or an error is pending.
func (e Events) Broken() bool {
	return e&(ended|failed) != 0
}

// A watched descriptor's events carry the generation of its registration. The loop drops an event of an
// earlier registration of the same number.
type watched struct {
	handler    Handler
	generation int32
	seen       Events // all that was told of it
}

// A watchedBlock is a part of the table of descriptors, which grows by blocks:
// nothing is copied, and little is empty.
type watchedBlock [blockSize]watched

const blockSize = 256

// An instant counts milliseconds since a loop began, by the monotonic clock.
// It starts over after 49 days, which differences do not show.
type instant uint32

func (i instant) since(before instant) time.Duration {
	return time.Duration(i-before) * time.Millisecond
}

// A tunnelList is a list whose links stand in the tunnels.
type tunnelList struct {
	first *Tunnel
	next  *Tunnel // that the sweep looks at; nil while there is no sweep
}

func (l *tunnelList) add(t *Tunnel) {
	if t.next = l.first; t.next != nil {
		t.next.prev = t
	}
	l.first = t
}

func (l *tunnelList) remove(t *Tunnel) {
	if l.next == t {
		l.next = t.next
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.next, t.prev = nil, nil
}

// A Loop waits for events of descriptors and calls their handlers, on the goroutine that calls Run.
type Loop struct {
	// Pipes is how many tunnels may be carried through pipes at a time; 0 means a number for a loop that serves
	// everybody. The others are copied. It is set before Run.
	Pipes int

	poller
	watched    []*watchedBlock // by descriptor
	timers     timerHeap
	began, now time.Time
	instant    instant // now
	buffer     []byte
	pipes      []*pipe
	pipesOut   int
	tunnels    tunnelList
	busy       []*Tunnel // have more to move than their share, the one that waits longest first
	had        int       // of busy, at the beginning, have had their turn
	share      int       // bytes that a stream may move now before it is busy
	moved      int       // bytes that all have moved in this turn
	due        []func()  // posted before those in posted
	ran        int       // of due, at the beginning, have run
	behind     bool      // some of due, or of posted without a wake-up, are left for the next round

	mu     sync.Mutex // guards the rest
	posted []func()
	closed bool
}

// NewLoop returns a loop that does nothing until Run is called.
func NewLoop() (*Loop, error) {
	now := time.Now()
	l := &Loop{began: now, now: now, buffer: make([]byte, bufferSize)}
	if err := l.open(); err != nil {
		return nil, err
	}
	l.After(sweepEvery, l.beginSweep)
	return l, nil
}

// Post runs f on the loop's goroutine, soon. It is safe for concurrent use
// and reports false, without running f, once the loop is closed.
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.posted = append(l.posted, f)
	if len(l.posted) == 1 {
		l.ring()
	}
	return true
}

// Close makes Run return after what it is doing. Tunnels that are still open
// are cut, and their keepers told. It is safe for concurrent use.
func (l *Loop) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		l.ring()
	}
}

// Scratch is a buffer for a callback to read into, until it returns.
func (l *Loop) Scratch() []byte { return l.buffer }

// Now is the time at which the loop last woke.
func (l *Loop) Now() time.Time { return l.now }

// Watch tells h about fd, edge-triggered, for reading and writing at once,
// until [Loop.CloseFD] or [Loop.Forget]: a watched descriptor must not be closed
// in another way. Watching again replaces the handler at no cost.
func (l *Loop) Watch(fd int, h Handler) error {
	if w := l.at(fd); w.handler != nil {
		w.handler = h
		return nil
	}
	return l.watch(fd, h, streams)
}

func (l *Loop) watch(fd int, h Handler, what interest) error {
	w := l.at(fd)
	w.generation++
	w.seen = 0
	if err := l.add(fd, w.generation, what); err != nil {
		return err
	}
	w.handler = h
	return nil
}

// WatchListener tells h, level-triggered, when a connection waits on fd. With
// several loops on one listener only one of them is woken.
func (l *Loop) WatchListener(fd int, h Handler) error {
	return l.watch(fd, h, arrivals)
}

// WatchEnd tells h when both halves of fd are over, which may be more than
// once, until [Loop.Forget]. Bytes are not its business.
func (l *Loop) WatchEnd(fd int, h Handler) error {
	return l.watch(fd, h, closings)
}

// Forget stops telling anyone about fd and leaves it open: for a descriptor
// that moves to another owner.
func (l *Loop) Forget(fd int) {
	l.remove(fd)
	l.at(fd).handler = nil
}

// CloseFD closes fd, which may be watched.
func (l *Loop) CloseFD(fd int) {
	l.at(fd).handler = nil
	l.closing(fd)
	closeFD(fd)
}

// at returns the place of fd, which is not negative.
func (l *Loop) at(fd int) *watched {
	for fd/blockSize >= len(l.watched) {
		l.watched = append(l.watched, nil)
	}
	block := &l.watched[fd/blockSize]
	if *block == nil {
		*block = new(watchedBlock)
	}
	return &(*block)[fd%blockSize]
}

// Run serves until Close and returns what made waiting impossible, or nil.
func (l *Loop) Run() error {
	defer l.release()
	events := make([]event, eventsAtOnce)
	for {
		n, err := l.wait(events)
		if err != nil {
			return err
		}
		l.now = time.Now()
		l.instant = instant(l.now.Sub(l.began) / time.Millisecond)
		l.share = eventShare
		for _, ev := range events[:n] {
			l.dispatch(ev)
		}
		if l.runPosted() {
			l.cutAll()
			return nil
		}
		l.runBusy()
		l.runTimers()
		l.sweep()
	}
}

// left reports whether the last round has left something to do: the next one must not wait for an event.
func (l *Loop) left() bool {
	return len(l.busy) > 0 || l.behind || l.tunnels.next != nil
}

func (l *Loop) dispatch(ev event) {
	if l.awake(ev) {
		return
	}
	if w := l.at(int(ev.Fd)); w.handler != nil && w.generation == ev.Pad {
		w.seen |= Events(ev.Events)
		w.handler.Ready(Events(ev.Events))
	}
}

// runPosted runs a bounded number of posted functions. If the loop is closed, runPosted runs all and returns true.
func (l *Loop) runPosted() (closed bool) {
	l.mu.Lock()
	closed = l.closed
	if l.behind = l.ran < len(l.due); !l.behind {
		l.due, l.posted, l.ran = l.posted, l.due[:0], 0
	} else if closed {
		l.due, l.posted = append(l.due, l.posted...), nil
	}
	l.mu.Unlock()
	for n := 0; l.ran < len(l.due) && (n < callsAtOnce || closed); n++ {
		f := l.due[l.ran]
		l.due[l.ran] = nil
		l.ran++
		f()
	}
	l.behind = l.behind || l.ran < len(l.due)
	return closed
}

// runBusy gives each busy tunnel a turn, until busyTurn bytes have moved in this round of the loop.
func (l *Loop) runBusy() {
	l.share, l.moved = busyShare, 0
	for l.had < len(l.busy) && l.moved < busyTurn {
		t := l.busy[l.had]
		l.busy[l.had] = nil
		l.had++
		t.busy = false
		if !t.over {
			t.step()
		}
	}
	if l.had > len(l.busy)/2 { // most often nobody is left
		n := copy(l.busy, l.busy[l.had:])
		clear(l.busy[n:])
		l.busy, l.had = l.busy[:n], 0
	}
}

// beginSweep has the following rounds look at all tunnels that there are now.
func (l *Loop) beginSweep() {
	if l.tunnels.next == nil {
		l.tunnels.next = l.tunnels.first
	}
	l.After(sweepEvery, l.beginSweep)
}

// sweep looks at some tunnels of a sweep, and ends those whose time is over.
func (l *Loop) sweep() {
	ended := 0
	for looks := 0; l.tunnels.next != nil && looks < looksAtOnce && ended < callsAtOnce; looks++ {
		t := l.tunnels.next
		l.tunnels.next = t.next
		if t.checkTime(); t.over {
			ended++
		}
	}
}

func (l *Loop) cutAll() {
	for l.tunnels.first != nil {
		l.tunnels.first.Cut()
	}
}

func (l *Loop) release() {
	for _, p := range l.pipes {
		p.close()
	}
	l.shut()
}
