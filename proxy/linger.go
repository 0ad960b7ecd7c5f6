package proxy

import (
	"cmp"
	"syscall"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/relay"
)

// farewell sends the last answer and closes. Where the client may have sent
// bytes that nobody reads, it waits a moment for the client to close: a reset
// could otherwise overtake the answer. For that moment it keeps its place; without
// one, it reads what is there and does not wait.
func (c *conn) farewell(answer []byte, refusal *egress.Refusal) {
	if c.closed {
		return
	}
	c.loop.Stop(c.timer)
	c.closeFlow(string(refusal.Decision.Class))
	if len(answer) > 0 {
		relay.WriteLast(c.fd, answer)
	}
	switch {
	case len(c.rest) == 0 && !relay.Unread(c.fd):
		c.drop()
	case !c.server.connections.admitted(&c.admission):
		relay.Read(c.fd, c.loop.Scratch())
		c.drop()
	default:
		c.closed = true
		c.lingering = linger(c.loop, c.fd, cmp.Or(c.server.lingerTime, time.Second), c.release)
	}
}

// A lingerer reads and forgets until the client closes. It belongs to the loop.
type lingerer struct {
	loop   *relay.Loop
	fd     int
	timer  *relay.Timer
	closed func() // is told, once
}

func linger(loop *relay.Loop, fd int, moment time.Duration, closed func()) *lingerer {
	l := &lingerer{loop: loop, fd: fd, closed: closed}
	relay.ShutdownWrite(fd)
	l.timer = loop.After(moment, l.close)
	if loop.Watch(fd, l) != nil {
		l.close()
	} else {
		l.Ready(syscall.EPOLLIN)
	}
	return l
}

func (l *lingerer) close() {
	if l.fd < 0 {
		return
	}
	l.loop.Stop(l.timer)
	l.loop.CloseFD(l.fd)
	l.fd = -1
	l.closed()
}

func (l *lingerer) Ready(relay.Events) {
	for range 16 {
		n, again, err := relay.Read(l.fd, l.loop.Scratch())
		if again {
			return
		}
		if err != nil || n == 0 {
			break
		}
	}
	l.close()
}
