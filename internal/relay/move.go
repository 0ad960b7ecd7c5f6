package relay

import "syscall"

// Bytes that may move before other streams have a turn. Work for a new connection takes a few rounds of the
// loop, and each round waits for the bytes of the round before. The bounds are therefore small, whatever the
// number of busy tunnels.
const (
	eventShare = bufferSize // of one stream, when it becomes ready; then it is busy
	busyShare  = 1 << 20    // of one busy stream in a turn
	busyTurn   = 4 << 20    // of all busy streams in a round
)

// move carries s between its sides as far as it goes without waiting, and
// reports false when the tunnel is broken.
func (t *Tunnel) move(s *stream, from, to *side) bool {
	before := s.count
	ok := t.carry(s, from, to)
	if s.count != before {
		t.moved = t.loop.instant // also where a slow reader is all that moves
		t.meter(s, s.count-before)
	}
	return ok
}

func (t *Tunnel) carry(s *stream, from, to *side) bool {
	for budget := t.loop.share; budget > 0; {
		if !s.flush(to) {
			return false
		}
		if s.holding() {
			return true // the receiver is full; its writability brings us back
		}
		if from.ended {
			return t.halfClose(s, to)
		}
		if !from.readable {
			t.release(s)
			return true
		}
		n, ok := t.fetch(s, from, to)
		if !ok {
			return false
		}
		if s == &t.up && !t.judged {
			return true // the client's bytes are held again
		}
		budget -= n
		t.loop.moved += n
	}
	t.wait()
	return true
}

// wait has a tunnel that could move more wait for its turn.
func (t *Tunnel) wait() {
	if !t.busy {
		t.busy = true
		t.loop.busy = append(t.loop.busy, t)
	}
}

// halfClose passes the end of a stream on.
func (t *Tunnel) halfClose(s *stream, to *side) bool {
	t.release(s)
	if !to.shut {
		to.shut = true
		shutdownWrite(int(to.fd))
	}
	return true
}

func (t *Tunnel) release(s *stream) {
	if s.pipe != nil {
		t.loop.giveBack(s.pipe)
		s.pipe = nil
	}
}

// fetch reads once: into the loop's buffer while little is there, into a
// borrowed pipe once a full buffer has shown that this stream is busy.
func (t *Tunnel) fetch(s *stream, from, to *side) (int, bool) {
	if s.pipe != nil && !from.followed && t.mayTake(s, 1) {
		return t.fetchPipe(s, from)
	}
	room := t.room(s, len(t.loop.buffer))
	n, errno := readFD(int(from.fd), t.loop.buffer[:room])
	if done, ok := t.fetched(from, n, errno); done {
		return 0, ok
	}
	if !t.mayTake(s, n) {
		t.exceed()
		return 0, false
	}
	if from.followed && !t.follow(s, t.loop.buffer[:n]) {
		return 0, !t.over
	}
	sent, errno := writeFD(int(to.fd), t.loop.buffer[:n])
	if errno == syscall.EAGAIN {
		sent, to.writable = 0, false
	} else if errno != 0 {
		return 0, false
	}
	s.count += int64(sent)
	s.keep(t.loop.buffer[sent:n])
	if n == len(t.loop.buffer) && s.pipe == nil {
		s.pipe = t.loop.borrow()
	} else if n < room && !from.hangup {
		from.readable = false // a short read emptied the queue; more bytes, or an end, bring a new edge
	}
	return n, true
}

func (t *Tunnel) fetchPipe(s *stream, from *side) (int, bool) {
	n, errno := splice(int(from.fd), s.pipe.w, t.room(s, pipeSize))
	if done, ok := t.fetched(from, n, errno); done {
		return 0, ok
	}
	s.pipe.held += n
	return n, true
}

// fetched sorts out a read that brought no bytes.
func (t *Tunnel) fetched(from *side, n int, errno syscall.Errno) (done, ok bool) {
	switch {
	case errno == syscall.EAGAIN:
		from.readable, from.hangup = false, false
		return true, true
	case errno != 0:
		return true, false
	case n == 0:
		from.ended, from.readable = true, false
		return true, true
	}
	t.moved = t.loop.instant
	return false, true
}

func (s *stream) holding() bool { return s.rest != nil || s.piped() > 0 }

// piped counts the bytes in the borrowed pipe.
func (s *stream) piped() int {
	if s.pipe == nil {
		return 0
	}
	return s.pipe.held
}

// flush writes what was fetched before; false means that the receiver broke.
func (s *stream) flush(to *side) bool {
	for s.rest != nil && to.writable {
		n, errno := writeFD(int(to.fd), *s.rest)
		if !s.wrote(to, n, errno) {
			return errno == syscall.EAGAIN
		}
		if *s.rest = (*s.rest)[n:]; len(*s.rest) == 0 {
			s.rest = nil
		}
	}
	for s.rest == nil && s.piped() > 0 && to.writable {
		n, errno := splice(s.pipe.r, int(to.fd), s.pipe.held)
		if !s.wrote(to, n, errno) {
			return errno == syscall.EAGAIN
		}
		s.pipe.held -= n
	}
	return true
}

func (s *stream) wrote(to *side, n int, errno syscall.Errno) bool {
	if errno != 0 {
		to.writable = to.writable && errno != syscall.EAGAIN
		return false
	}
	s.count += int64(n)
	return true
}
