package proxy

import (
	"cmp"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/sandbox"
)

// A wayIn is what the clients of one listener have in common.
type wayIn struct {
	name     string
	original Original // nil where clients mean to come here
}

// A loopListener accepts for one loop, on a descriptor of its own. Every loop has
// one for each socket that Serve was given, and the kernel wakes one of them.
type loopListener struct {
	wayIn
	server  *Server
	at      netip.AddrPort
	fd      int
	loop    *relay.Loop
	number  int // of loop, among the server's
	open    *sync.WaitGroup
	left    *atomic.Int32  // listeners of the same socket that have not ended
	ended   bool           // on the loop
	lookups sync.WaitGroup // for programs of connections

	elsewhere map[*relay.Loop]*loopListener // the same for connections on other loops; on the loop
	waiting   atomic.Int32                  // connections that no quota holds and that wait for the loop
}

func (in *loopListener) begin() {
	if in.ended {
		return
	}
	if err := in.loop.WatchListener(in.fd, in); err != nil {
		in.end()
	}
}

func (in *loopListener) end() {
	if in.ended {
		return
	}
	var unseen int64
	if in.original != nil { // what has come until now is of somebody who may be gone
		in.accept(cmp.Or(in.server.backlogLimit, backlogMost))
		if in.left.Add(-1) == 0 {
			unseen = backlogOf(in.fd)
		}
	}
	in.ended = true
	in.loop.Forget(in.fd)
	in.loop.CloseFD(in.fd)
	if unseen != 0 {
		in.server.running.Go(func() { in.refuseUnseen(unseen) }) // which may wait for the log
	}
	in.open.Done()
}

// refuseUnseen records what has come to a listener that has ended and was not accepted:
// how many, which may be 0, or -1 where that is not known. A log that fails is not reported:
// nobody waits for it, and nothing has passed.
func (in *loopListener) refuseUnseen(n int64) {
	const why = "the listener ended before these connections were looked at: they were too many, or egressd had no descriptors left"
	who, via := sandbox.Peer{Listener: in.name}, in.via()
	switch {
	case n > 0:
		_ = in.server.Gate.RefuseUnseen(who, via, policy.TooManyFlows, n, why)
	case n < 0:
		_ = in.server.Gate.RefuseUnseen(who, via, policy.TooManyFlows, 0, why+"; how many is not known")
	}
}

// refuseOne records that a connection was refused before it was served.
func (in *loopListener) refuseOne(from sandbox.Peer, why string) {
	in.server.Gate.Refuse(from, in.via(), nil, policy.TooManyFlows, why)
}

// via is the way in as far as the listener tells it.
func (in *loopListener) via() policy.Via {
	if in.original != nil {
		return policy.ViaTransparent
	}
	return policy.ViaUnknown
}

const acceptAtOnce = 64

// backlogMost is more than wait at a listener, by net.core.somaxconn, and bounds what comes in the
// meantime.
const backlogMost = 16 << 10

// Ready accepts what waits.
func (in *loopListener) Ready(relay.Events) { in.accept(acceptAtOnce) }

// accept accepts what waits, up to a number of connections.
func (in *loopListener) accept(most int) {
	for range most {
		fd, from, err := accept(in.fd)
		switch {
		case err == nil:
			in.take(fd, peerOf(in.name, fd, from))
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
			in.pause()
			return
		case errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EINTR):
		default:
			return
		}
	}
}

// take serves a connection that was accepted, on its holder's own loop if it has one.
func (in *loopListener) take(fd int, from sandbox.Peer) {
	h := in.server.Sandboxes.Holder(&from)
	if own := in.server.holderLoop(&from, h, in.number); own != nil {
		in.on(own).handOver(fd, from, h)
		return
	}
	c := newClient(in, fd, from)
	c.serve(in, c.admit(in.server, h))
}

// on returns the listener for connections that another loop serves.
func (in *loopListener) on(loop *relay.Loop) *loopListener {
	other := in.elsewhere[loop]
	if other == nil {
		if in.elsewhere == nil {
			in.elsewhere = map[*relay.Loop]*loopListener{}
		}
		other = &loopListener{server: in.server, wayIn: in.wayIn, at: in.at, fd: -1, loop: loop}
		in.elsewhere[loop] = other
	}
	return other
}

// waitingLeast is how many connections that no quota holds may wait for one loop, at least.
const waitingLeast = 256

// handOver counts a connection with its holder and has in's loop serve it. A loop that is held up leaves descriptors
// open: the quota bounds those of a sandbox. Connections that were refused or may be evicted have a bound of their own.
// Only one goroutine may call handOver of a listener.
func (in *loopListener) handOver(fd int, from sandbox.Peer, h sandbox.Holder) {
	s := in.server
	full := int(in.waiting.Load()) >= max(waitingLeast, s.connections.most/4)
	if full && h.Sandbox == "" {
		in.turnAway(fd, from)
		return
	}
	c := newClient(in, fd, from)
	admitted := c.admit(s, h)
	if full && !admitted {
		in.turnAway(fd, from)
		return
	}
	counted := h.Sandbox == "" || !admitted
	if counted {
		in.waiting.Add(1)
	}
	served := in.loop.Post(func() {
		if counted {
			in.waiting.Add(-1)
		}
		c.serve(in, admitted)
	})
	if !served {
		syscall.Close(fd)
		s.connections.release(&c.admission)
	}
}

// turnAway refuses a connection without a loop.
func (in *loopListener) turnAway(fd int, from sandbox.Peer) {
	in.server.recordRefusal(from, in.via(), func() { in.server.refuseOneMore(from) })
	relay.Reset(fd)
	syscall.Close(fd)
}

// pause leaves connections waiting in the kernel until descriptors are free.
func (in *loopListener) pause() {
	in.loop.Forget(in.fd)
	in.loop.After(100*time.Millisecond, in.begin)
}

func closeAll(all []*loopListener) {
	for _, in := range all {
		syscall.Close(in.fd)
	}
}
