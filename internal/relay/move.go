package relay

import "syscall"

// fairShare is how many bytes one stream may move before the others have
// their turn.
const fairShare = 4 << 20

// move carries s as far as it goes without waiting, and reports false when
// the tunnel is broken.
func (t *Tunnel) move(s *stream) bool {
	before := *s.count
	ok := t.carry(s)
	if *s.count != before {
		t.moved = t.loop.now.UnixMilli() // also where a slow reader is all that moves
	}
	return ok
}

func (t *Tunnel) carry(s *stream) bool {
	for budget := fairShare; budget > 0; {
		if !s.flush() {
			return false
		}
		if s.holding() {
			return true // the receiver is full; its writability brings us back
		}
		if s.from.ended {
			return t.halfClose(s)
		}
		if !s.from.readable {
			t.release(s)
			return true
		}
		n, ok := t.fetch(s)
		if !ok {
			return false
		}
		budget -= n
	}
	t.loop.Post(t.step)
	return true
}

// halfClose passes the end of a stream on.
func (t *Tunnel) halfClose(s *stream) bool {
	t.release(s)
	if !s.to.shut {
		s.to.shut = true
		shutdownWrite(s.to.fd)
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
func (t *Tunnel) fetch(s *stream) (int, bool) {
	if s.pipe != nil {
		return t.fetchPipe(s)
	}
	n, errno := readFD(s.from.fd, t.loop.buffer)
	if done, ok := t.fetched(s, n, errno); done {
		return 0, ok
	}
	sent, errno := writeFD(s.to.fd, t.loop.buffer[:n])
	if errno == syscall.EAGAIN {
		sent, s.to.writable = 0, false
	} else if errno != 0 {
		return 0, false
	}
	*s.count += int64(sent)
	if sent < n {
		s.rest = append([]byte(nil), t.loop.buffer[sent:n]...)
	}
	if n == len(t.loop.buffer) {
		s.pipe = t.loop.borrow()
	} else if !s.from.hangup {
		s.from.readable = false // a short read emptied the queue; more bytes, or an end, bring a new edge
	}
	return n, true
}

func (t *Tunnel) fetchPipe(s *stream) (int, bool) {
	n, errno := splice(s.from.fd, s.pipe.w, pipeSize)
	if done, ok := t.fetched(s, n, errno); done {
		return 0, ok
	}
	s.pipe.held += n
	return n, true
}

// fetched sorts out a read that brought no bytes.
func (t *Tunnel) fetched(s *stream, n int, errno syscall.Errno) (done, ok bool) {
	switch {
	case errno == syscall.EAGAIN:
		s.from.readable, s.from.hangup = false, false
		return true, true
	case errno != 0:
		return true, false
	case n == 0:
		s.from.ended, s.from.readable = true, false
		return true, true
	}
	t.moved = t.loop.now.UnixMilli()
	return false, true
}

func (s *stream) holding() bool { return len(s.rest) > 0 || s.piped() > 0 }

// piped counts the bytes in the borrowed pipe.
func (s *stream) piped() int {
	if s.pipe == nil {
		return 0
	}
	return s.pipe.held
}

// flush writes what was fetched before; false means that the receiver broke.
func (s *stream) flush() bool {
	for len(s.rest) > 0 && s.to.writable {
		n, errno := writeFD(s.to.fd, s.rest)
		if !s.wrote(n, errno) {
			return errno == syscall.EAGAIN
		}
		if s.rest = s.rest[n:]; len(s.rest) == 0 {
			s.rest = nil
		}
	}
	for len(s.rest) == 0 && s.piped() > 0 && s.to.writable {
		n, errno := splice(s.pipe.r, s.to.fd, s.pipe.held)
		if !s.wrote(n, errno) {
			return errno == syscall.EAGAIN
		}
		s.pipe.held -= n
	}
	return true
}

func (s *stream) wrote(n int, errno syscall.Errno) bool {
	if errno != 0 {
		s.to.writable = s.to.writable && errno != syscall.EAGAIN
		return false
	}
	*s.count += int64(n)
	return true
}
