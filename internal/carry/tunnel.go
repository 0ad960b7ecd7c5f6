package carry

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/record"
)

// A Tunnel carries bytes between two connections. Thousands are idle at a time, so each word counts.
type Tunnel struct {
	set              *Set
	owner            Owner
	limits           *Limits
	next, prev       *Tunnel // of the set
	client, upstream side
	up, down         stream
	budget           atomic.Int64            // bytes that may go up in all; 0: any number
	watcher          atomic.Pointer[Watcher] // nil: nobody looks

	began, quietSince time.Time // the latter is of the sweep, as is:
	seen              int64     // bytes of both ways, when it looked last

	mu      sync.Mutex     // guards what follows
	outcome record.Outcome // once it ends
	parties int8           // goroutines that use the connections
	spoke   bool           // the upstream has sent something, or ended
	left    chan struct{}
}

// A side is one of the two connections.
type side struct {
	conn  net.Conn
	raw   syscall.RawConn // nil: conn is no plain socket
	ended bool            // its stream was read to the end, and that was passed on; guarded by Tunnel.mu
}

// A stream is the bytes of one direction.
type stream struct {
	tunnel      *Tunnel
	from, to    *side
	count       atomic.Int64 // passed on
	buffer      *buffer      // borrowed: holds what was read and is not passed on
	rest        []byte       // of it
	pipe        *pipe        // borrowed, of a busy stream
	busy        int8         // reads to come that use a pipe, if none of them brings much
	failed      error        // of the last read or write
	read, write func(fd uintptr) bool
}

// busyFor is how many reads in a row bring little before a stream that was busy is not.
const busyFor = 16

// Down lets the upstream speak.
func (t *Tunnel) Down() {
	t.mu.Lock()
	t.parties++
	t.mu.Unlock()
	t.set.running.Add(1)
	go t.down.run()
}

// Up lets the client's bytes go: first, which was read already, and what follows.
func (t *Tunnel) Up(first []byte) {
	if !t.Send(first) {
		t.Leave("")
		return
	}
	t.set.running.Add(1)
	go t.up.run()
}

// Send passes bytes on that the caller has read from the client. It returns false if the tunnel has ended, or ends by
// that.
func (t *Tunnel) Send(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if t.up.exceeds(len(b)) {
		t.End(OverBudget)
		return false
	}
	n, err := t.upstream.conn.Write(b)
	t.up.passed(int64(n))
	if err != nil {
		t.End(record.OutcomeReset)
	}
	return err == nil
}

// Watch has w look at everything that passes from now on. It is called before Up.
func (t *Tunnel) Watch(w Watcher) { t.watcher.Store(&w) }

// Spoken reports whether the upstream has said something to the client.
func (t *Tunnel) Spoken() bool { return t.down.count.Load() > 0 }

// Limit changes how many bytes of payload may go to the upstream in all; 0 means any number. A tunnel that has sent more
// already ends within half a second.
func (t *Tunnel) Limit(up int64) { t.budget.Store(up) }

// End ends the tunnel from outside. The first reason counts.
func (t *Tunnel) End(outcome record.Outcome) {
	t.mu.Lock()
	over := t.outcome != ""
	if !over {
		t.outcome = outcome
	}
	t.mu.Unlock()
	if !over {
		t.breakOff(outcome)
	}
}

// breakOff ends both connections, so that nobody takes what has come for all. A client whose first bytes went nowhere
// gets an orderly end, since it may be told why.
func (t *Tunnel) breakOff(outcome record.Outcome) {
	Abort(t.upstream.conn)
	switch outcome {
	case record.OutcomeClientLeft, record.OutcomeFirstBytesLate, Refused:
		t.client.conn.Close()
	default:
		Abort(t.client.conn)
	}
}

// Abort closes c with a reset, where c can be reset.
func Abort(c net.Conn) {
	if socket, ok := c.(interface{ SetLinger(int) error }); ok {
		socket.SetLinger(0)
	}
	c.Close()
}

// Over reports whether the tunnel has ended.
func (t *Tunnel) Over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outcome != ""
}

// Leave is for a caller that will not call Up: the tunnel ends, for that reason if there is no other one.
func (t *Tunnel) Leave(outcome record.Outcome) {
	if outcome != "" {
		t.End(outcome)
	}
	t.leave()
}

// NothingUp is for a client that sends nothing and still reads: its end is passed on.
func (t *Tunnel) NothingUp() {
	t.up.finish()
	t.leave()
}

// leave counts one goroutine out. The last one closes.
func (t *Tunnel) leave() {
	t.mu.Lock()
	t.parties--
	last := t.parties == 0
	orderly := last && t.outcome == ""
	if orderly {
		t.outcome = record.OutcomeClosed
	}
	outcome, left := t.outcome, t.left
	t.mu.Unlock()
	if outcome == taken {
		close(left)
		return
	}
	if !last {
		return
	}
	t.set.remove(t)
	if orderly {
		t.client.conn.Close()
		t.upstream.conn.Close()
	}
	t.owner.Ended(End{Up: t.up.count.Load(), Down: t.down.count.Load(), Outcome: outcome})
}

// Take gives both connections back to the caller, unless the upstream has spoken or the tunnel has ended.
func (t *Tunnel) Take() bool {
	t.mu.Lock()
	if t.outcome != "" || t.spoke {
		t.mu.Unlock()
		return false
	}
	t.outcome = taken
	listening := t.parties > 1
	if listening {
		t.left = make(chan struct{})
	}
	t.mu.Unlock()
	t.set.remove(t)
	if listening {
		t.upstream.conn.SetReadDeadline(time.Unix(1, 0))
		<-t.left
		t.upstream.conn.SetReadDeadline(time.Time{})
	}
	return true
}

// overdue returns why the tunnel has to end by now, or "". Only one goroutine calls it.
func (t *Tunnel) overdue(now time.Time) record.Outcome {
	if seen := t.up.count.Load() + t.down.count.Load(); seen != t.seen {
		t.seen, t.quietSince = seen, now
	}
	switch most := t.budget.Load(); {
	case most != 0 && t.up.count.Load() > most:
		return OverBudget
	case now.Sub(t.quietSince) >= t.limits.Idle:
		return record.OutcomeIdle
	case now.Sub(t.began) >= t.limits.Life:
		return record.OutcomeLifetime
	}
	client, upstream := t.ended()
	if client == upstream {
		return ""
	}
	half := &t.upstream // nobody reads from it any more, who would see that it is reset
	if client {
		half = &t.client
	}
	if !half.gone() {
		return ""
	}
	if client, upstream = t.ended(); client && upstream { // meanwhile: it is gone since the tunnel has passed the other end on
		return ""
	}
	return record.OutcomeReset
}

// ended reports which sides have sent all that they will.
func (t *Tunnel) ended() (client, upstream bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.client.ended, t.upstream.ended
}

// gone reports whether both ways of a connection have ended, or it has failed.
func (s *side) gone() (is bool) {
	if s.raw == nil {
		return false
	}
	err := s.raw.Control(func(fd uintptr) { _, is = state(int(fd)) })
	return err == nil && is
}

func (s *stream) run() {
	defer s.tunnel.set.running.Done()
	outcome := s.carry()
	s.giveBack()
	if outcome != record.OutcomeClosed {
		s.tunnel.End(outcome)
	}
	s.tunnel.leave()
}

// carry carries until an end, which it passes on.
func (s *stream) carry() record.Outcome {
	s.read, s.write = s.tryRead, s.tryWrite
	for {
		err := s.fetch()
		if errors.Is(err, errBudget) {
			return OverBudget
		}
		if len(s.rest) > 0 && !s.watched() {
			return Refused
		}
		if s.flush() != nil {
			return record.OutcomeReset
		}
		switch {
		case errors.Is(err, io.EOF):
			s.finish()
			return record.OutcomeClosed
		case err != nil:
			return record.OutcomeReset
		}
	}
}

var errBudget = errors.New("more than the budget")

// finish passes the end of a stream on.
func (s *stream) finish() {
	s.tunnel.mu.Lock()
	s.from.ended = true // before the other side may be gone by that, see overdue
	s.tunnel.mu.Unlock()
	if half, ok := s.to.conn.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
}

// watched has the watcher look at what was read, and reports whether it may go on.
func (s *stream) watched() bool {
	w := s.tunnel.watcher.Load()
	if w == nil {
		return true
	}
	over, ok := (*w).Watch(s == &s.tunnel.up, s.rest)
	if over {
		s.tunnel.watcher.Store(nil)
	}
	return ok
}

// fetch reads once, and waits for it: into a buffer, or into a pipe where a full buffer has shown that the stream is
// busy.
func (s *stream) fetch() error {
	if s.from.raw == nil {
		s.buffer = s.tunnel.set.buffers.borrow()
		n, err := s.from.conn.Read(s.buffer[:s.room(len(s.buffer))])
		return s.came(n, err)
	}
	if err := s.from.raw.Read(s.read); err != nil {
		return err
	}
	return s.failed
}

// turn returns what is held in calls on one side of the tunnel, or nil.
func (t *Tunnel) turn(s *side) *sync.Mutex {
	if s != &t.client {
		return nil
	}
	return t.limits.Turn
}

// tryRead reads without waiting, and returns false if there is nothing yet.
func (s *stream) tryRead(fd uintptr) bool {
	if turn := s.tunnel.turn(s.from); turn != nil {
		turn.Lock()
		defer turn.Unlock()
	}
	if s.busy > 0 && s.tunnel.watcher.Load() == nil {
		if s.pipe == nil {
			s.pipe = s.tunnel.set.pipes.borrow()
		}
		if s.pipe != nil {
			return s.trySplice(int(fd))
		}
	}
	s.buffer = s.tunnel.set.buffers.borrow()
	room := s.buffer[:s.room(len(s.buffer))]
	n, err := s.readOnce(int(fd), room)
	if errors.Is(err, syscall.EAGAIN) {
		s.giveBack()
		return false
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	if n == len(s.buffer) && s.to.raw != nil {
		s.busy = busyFor
	}
	s.failed = s.came(n, err)
	return true
}

// readOnce is read(2). What the upstream says first is not read if Take was quicker.
func (s *stream) readOnce(fd int, b []byte) (int, error) {
	t := s.tunnel
	if s == &t.up || s.count.Load() > 0 {
		return readFD(fd, b)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outcome != "" {
		return 0, net.ErrClosed
	}
	n, err := readFD(fd, b)
	t.spoke = !errors.Is(err, syscall.EAGAIN)
	return n, err
}

// came notes the result of a read into the buffer.
func (s *stream) came(n int, err error) error {
	n = max(n, 0)
	s.rest = s.buffer[:n]
	if s.exceeds(n) {
		return errBudget
	}
	return err
}

func (s *stream) trySplice(fd int) bool {
	n, err := splice(fd, s.pipe.w, s.room(pipeSize))
	switch {
	case errors.Is(err, syscall.EAGAIN):
		s.giveBack()
		return false
	case err == nil && n == 0:
		err = io.EOF
	case err == nil:
		s.pipe.held = n
		if s.busy--; n >= bufferSize/2 {
			s.busy = busyFor
		}
		if s.exceeds(n) {
			err = errBudget
		}
	}
	s.failed = err
	return true
}

// room is how many bytes may be read at once, at most most: 1 in place of 0, so that a byte over the budget is noticed.
func (s *stream) room(most int) int {
	budget := s.tunnel.budget.Load()
	if s != &s.tunnel.up || budget == 0 {
		return most
	}
	return int(max(1, min(int64(most), budget-s.count.Load())))
}

// exceeds reports whether n more bytes are too many. It has the owner count them.
func (s *stream) exceeds(n int) bool {
	if s != &s.tunnel.up || n == 0 {
		return false
	}
	budget := s.tunnel.budget.Load()
	return budget != 0 && s.count.Load()+int64(n) > budget || !s.tunnel.owner.Spend(n)
}

// flush writes what was read, and waits for it.
func (s *stream) flush() error {
	var err error
	switch {
	case s.to.raw == nil && len(s.rest) > 0:
		var n int
		n, err = s.to.conn.Write(s.rest)
		s.passed(int64(n))
		s.rest = nil
	case len(s.rest) > 0 || s.pipe != nil && s.pipe.held > 0:
		s.failed = nil
		if err = s.to.raw.Write(s.write); err == nil {
			err = s.failed
		}
	}
	if err == nil {
		s.giveBack()
	}
	return err
}

// tryWrite writes what goes without waiting, and returns false if something is left.
func (s *stream) tryWrite(fd uintptr) bool {
	if turn := s.tunnel.turn(s.to); turn != nil {
		turn.Lock()
		defer turn.Unlock()
	}
	for len(s.rest) > 0 {
		n, err := writeFD(int(fd), s.rest)
		if err != nil {
			s.failed = err
			return !errors.Is(err, syscall.EAGAIN)
		}
		s.rest = s.rest[n:]
		s.passed(int64(n))
	}
	for s.pipe != nil && s.pipe.held > 0 {
		n, err := splice(s.pipe.r, int(fd), s.pipe.held)
		if err != nil {
			s.failed = err
			return !errors.Is(err, syscall.EAGAIN)
		}
		s.pipe.held -= n
		s.passed(int64(n))
	}
	s.failed = nil
	return true
}

// giveBack returns what is borrowed.
func (s *stream) giveBack() {
	if s.buffer != nil {
		s.tunnel.set.buffers.giveBack(s.buffer)
		s.buffer, s.rest = nil, nil
	}
	if s.pipe != nil {
		s.tunnel.set.pipes.giveBack(s.pipe)
		s.pipe = nil
	}
}

// passed counts bytes that were passed on.
func (s *stream) passed(n int64) {
	s.count.Add(n)
	switch m := s.tunnel.limits.Meter; {
	case m == nil:
	case s == &s.tunnel.up:
		m.Up.Add(n)
	default:
		m.Down.Add(n)
	}
}
