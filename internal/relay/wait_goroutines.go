//go:build !linux || noepoll

package relay

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An interest says which events of a descriptor its handler is told.
type interest int

const (
	streams  interest = iota // all, edge-triggered
	arrivals                 // readable, level-triggered
	closings                 // both halves are over
)

// An event has the fields of an epoll event.
type event struct {
	Events  uint32
	Fd, Pad int32
}

// A poller tells a loop of its descriptors, by goroutines that wait in Go's own poller: one for a listener,
// two for a connection. It takes more memory than epoll(7), and works on every Unix.
type poller struct {
	bell    chan struct{}   // holds one wake-up
	byFD    map[int]*waiter // belongs to the loop's goroutine
	waiting sync.WaitGroup

	mu   sync.Mutex // guards told
	told []*waiter  // have events that the loop has not taken
}

// A waiter waits for events of one descriptor, at a duplicate of it.
type waiter struct {
	poller     *poller
	file       *os.File
	fd         int32
	generation int32
	what       interest
	gone       chan struct{} // closed when the descriptor is forgotten
	taken      chan struct{} // of arrivals: the loop has taken what was told

	events Events // told and not taken; the poller's mu guards it
}

func (p *poller) open() error {
	p.bell, p.byFD = make(chan struct{}, 1), map[int]*waiter{}
	return nil
}

func (p *poller) shut() {
	for _, w := range p.byFD {
		w.forget()
	}
	clear(p.byFD)
	p.waiting.Wait()
}

// ring wakes the loop. It is safe for concurrent use.
func (p *poller) ring() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

func (p *poller) awake(event) bool { return false }

func (p *poller) add(fd int, generation int32, what interest) error {
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w := &waiter{
		poller: p, file: os.NewFile(uintptr(again), "watched"), fd: int32(fd), generation: generation, what: what,
		gone: make(chan struct{}), taken: make(chan struct{}, 1),
	}
	raw, err := w.file.SyscallConn()
	if err == nil {
		err = w.file.SetDeadline(time.Time{}) // fails if Go's poller has not taken the descriptor
	}
	if err != nil {
		w.file.Close()
		return err
	}
	p.byFD[fd] = w
	p.waiting.Go(func() { raw.Read(w.look) })
	if what == streams {
		p.waiting.Go(func() { raw.Write(w.look) })
	}
	return nil
}

func (p *poller) remove(fd int) { p.closing(fd) }

// closing ends the watch of a descriptor that is about to be closed.
func (p *poller) closing(fd int) {
	if w := p.byFD[fd]; w != nil {
		delete(p.byFD, fd)
		w.forget()
	}
}

// forget waits for the waiter's goroutines, which may be about to take the poller's mu.
func (w *waiter) forget() {
	close(w.gone)
	w.file.Close()
}

// look tells the loop what its descriptor is ready for. Go's poller calls it at the beginning and after each
// edge, and stops when it returns true.
func (w *waiter) look(fd uintptr) (over bool) {
	for {
		e := w.ready(int(fd))
		if e == 0 {
			return false
		}
		w.poller.tell(w, e)
		if w.what != arrivals {
			return false
		}
		select {
		case <-w.taken:
		case <-w.gone:
			return true
		}
	}
}

// ready asks poll(2) what the descriptor is ready for.
func (w *waiter) ready(fd int) Events {
	e := poll(fd)
	if e&readEnded != 0 && isReset(fd) {
		e |= ended
	}
	switch w.what {
	case arrivals:
		e &= CanRead
	case closings:
		e &= ended | failed
	}
	return e
}

func (p *poller) tell(w *waiter, e Events) {
	p.mu.Lock()
	if w.events == 0 {
		p.told = append(p.told, w)
	}
	w.events |= e
	p.mu.Unlock()
	p.ring()
}

// wait returns events that are there, or waits for one, for the next timer or for ring.
func (l *Loop) wait(events []event) (int, error) {
	n := l.take(events)
	if n > 0 || l.left() {
		return n, nil
	}
	var late <-chan time.Time
	if wait := l.timers.waitFor(time.Now()); wait >= 0 {
		timer := time.NewTimer(time.Duration(wait) * time.Millisecond)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-l.bell:
	case <-late:
	}
	return l.take(events), nil
}

func (p *poller) take(events []event) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(len(events), len(p.told))
	for i, w := range p.told[:n] {
		events[i] = event{uint32(w.events), w.fd, w.generation}
		w.events = 0
		select {
		case w.taken <- struct{}{}:
		default:
		}
	}
	p.told = append(p.told[:0], p.told[n:]...)
	return n
}

// isReset reports whether a connection has ended both ways.
func isReset(fd int) bool {
	_, err := syscall.Getpeername(fd)
	return err != nil
}
