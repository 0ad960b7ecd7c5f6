package relay

import (
	"syscall"
	"time"
)

// A Judgement is what a [Keeper] says of a client's first bytes.
type Judgement uint8

const (
	Refuse Judgement = iota // not one byte goes upstream; the tunnel ends
	More                    // undecided: wait for more bytes
	Pass                    // these and all later bytes may go
	Take                    // the keeper has taken both descriptors over; the tunnel is no more
)

// A Keeper is who a tunnel belongs to.
type Keeper interface {
	// First judges everything the client has sent so far. It is called until
	// it says something else than More, or the client's time is over. first
	// is valid during the call only. After Refuse, farewell (which may be
	// nil) is sent to the client.
	First(first []byte) (j Judgement, farewell []byte)
	// Ended is called once, when both descriptors are closed, except after
	// Take.
	Ended(End)
}

// An End says how a tunnel ended.
type End struct {
	Up, Down int64 // payload bytes passed on to the upstream and to the client
	Why      Why
}

// Why is the reason of an end.
type Why string

const (
	Closed      Why = "closed"           // both sides had finished
	Broken      Why = "reset"            // one side broke off
	IdleTooLong Why = "idle-timeout"     // nothing moved for the idle time
	FirstLate   Why = "first-bytes-late" // the client's first bytes were not complete in time
	Refused     Why = "refused"          // the keeper refused the first bytes
	FirstEnded  Why = "client-left"      // the client ended before its first bytes were complete
	WasCut      Why = "cut"
)

// Limits bound a tunnel in time and size.
type Limits struct {
	First      time.Duration // until the client's first bytes are judged
	FirstBytes int           // most bytes held for that
	Idle       time.Duration // without a byte either way
	// ServerFirst lets the upstream speak before the client was judged: then
	// First counts from the client's own first byte.
	ServerFirst bool
}

// A side is one descriptor and what is known of it. Readiness is edge-
// triggered: a flag stands until the call that would block.
type side struct {
	fd       int
	readable bool
	writable bool
	ended    bool // its stream has been read to the end
	hangup   bool // an end may be waiting behind the last bytes: read until nothing comes
	shut     bool // its sending half has been shut down
}

// A flow of bytes in one direction.
type stream struct {
	from, to *side
	count    *int64
	rest     []byte // read, and not yet written
	pipe     *pipe  // borrowed while the stream is busy
}

// A Tunnel carries bytes between two descriptors, which it owns.
type Tunnel struct {
	loop             *Loop
	keeper           Keeper
	client, upstream side
	up, down         stream
	limits           *Limits
	end              End
	first            []byte // the client's first bytes while they are judged
	born, moved      int64  // unix milliseconds
	judged           bool
	started          bool
	over             bool
}

// Carry begins a tunnel in which nothing passes before Start, and no client
// byte before keeper has said Pass. first holds client bytes that were read
// already. limits is shared and must not change.
func (l *Loop) Carry(client, upstream int, first []byte, keeper Keeper, limits *Limits) *Tunnel {
	t := &Tunnel{loop: l, keeper: keeper, limits: limits, born: l.now.UnixMilli(), moved: l.now.UnixMilli()}
	t.client = side{fd: client, readable: true, writable: true, hangup: true}
	t.upstream = side{fd: upstream, readable: true, writable: true, hangup: true}
	t.up = stream{from: &t.client, to: &t.upstream, count: &t.end.Up}
	t.down = stream{from: &t.upstream, to: &t.client, count: &t.end.Down}
	t.first = first
	l.tunnels[t] = struct{}{}
	if l.Watch(client, (*clientSide)(t)) != nil || l.Watch(upstream, (*upstreamSide)(t)) != nil {
		t.finish(Broken)
		return t
	}
	if len(first) > 0 {
		t.judge()
	}
	return t
}

// Start lets bytes pass, from now on.
func (t *Tunnel) Start() {
	if !t.over {
		t.started = true
		t.step()
	}
}

// Cut ends the tunnel now, with a reset to both sides.
func (t *Tunnel) Cut() {
	if !t.over {
		Reset(t.client.fd)
		Reset(t.upstream.fd)
		t.finish(WasCut)
	}
}

// Down counts the bytes that went to the client so far.
func (t *Tunnel) Down() int64 { return t.end.Down }

type clientSide Tunnel

func (c *clientSide) Ready(e Events) { (*Tunnel)(c).ready(&c.client, e) }

type upstreamSide Tunnel

func (u *upstreamSide) Ready(e Events) { (*Tunnel)(u).ready(&u.upstream, e) }

func (t *Tunnel) ready(s *side, e Events) {
	s.readable = s.readable || e.Readable()
	s.writable = s.writable || e.Writable()
	s.hangup = s.hangup || e.hangup()
	t.step()
	if s.ended && e&syscall.EPOLLERR != 0 { // looked at after the step, which may be what found the end
		t.finish(Broken)
	}
}

// step moves what can be moved.
func (t *Tunnel) step() {
	if !t.judged && t.client.readable {
		t.readFirst()
	}
	if t.over || !t.started {
		return
	}
	up := !t.judged || t.move(&t.up)
	down := !t.judged && !t.limits.ServerFirst || t.move(&t.down)
	if !up || !down {
		t.finish(Broken)
		return
	}
	if t.upstream.ended && t.client.ended && t.client.shut && t.upstream.shut {
		t.finish(Closed)
	}
}

// readFirst reads the client's first bytes for the keeper.
func (t *Tunnel) readFirst() {
	for !t.judged && !t.over {
		n, errno := readFD(t.client.fd, t.loop.buffer)
		switch {
		case errno == syscall.EAGAIN:
			t.client.readable = false
			return
		case errno != 0 || n == 0:
			t.firstEnded(errno)
			return
		}
		t.moved = t.loop.now.UnixMilli()
		if len(t.first) == 0 {
			t.born = t.moved
		}
		t.hold(t.loop.buffer[:n])
	}
}

// firstEnded is a client that ends before its first bytes are judged: where it
// never sent one, that is a half-close.
func (t *Tunnel) firstEnded(errno syscall.Errno) {
	if errno != 0 || len(t.first) > 0 || !t.limits.ServerFirst {
		t.finish(FirstEnded)
		return
	}
	t.client.ended, t.client.readable = true, false
	t.judged = true
}

func (t *Tunnel) hold(b []byte) {
	if len(t.first) > 0 {
		b = append(t.first, b...)
	}
	verdict, farewell := t.keeper.First(b)
	if verdict == More && len(b) <= t.limits.FirstBytes {
		if len(t.first) == 0 {
			b = append([]byte(nil), b...)
		}
		t.first = b
		return
	}
	t.apply(verdict, farewell, b)
}

func (t *Tunnel) judge() {
	first := t.first
	if verdict, farewell := t.keeper.First(first); verdict != More {
		t.apply(verdict, farewell, first)
	}
}

func (t *Tunnel) apply(verdict Judgement, farewell, first []byte) {
	t.first = nil
	switch verdict {
	case Pass:
		t.judged = true
		t.passFirst(first)
	case Take:
		t.over = true
		delete(t.loop.tunnels, t)
		t.release(&t.up)
		t.release(&t.down)
	default:
		if len(farewell) > 0 {
			writeFD(t.client.fd, farewell)
		}
		t.finish(Refused)
	}
}

// passFirst sends the judged bytes at once where it may: they stand in the
// loop's buffer and must not wait there.
func (t *Tunnel) passFirst(first []byte) {
	n := 0
	if t.started {
		n, _ = writeFD(t.upstream.fd, first)
		n = max(n, 0)
		t.end.Up += int64(n)
	}
	if n < len(first) {
		t.up.rest = append([]byte(nil), first[n:]...)
	}
}

// checkTime ends a tunnel whose time is over.
func (t *Tunnel) checkTime() {
	now := t.loop.now.UnixMilli()
	waiting := !t.judged && (len(t.first) > 0 || !t.limits.ServerFirst || t.end.Down == 0)
	switch {
	case waiting && now-t.born >= t.limits.First.Milliseconds():
		t.finish(FirstLate)
	case now-t.moved >= t.limits.Idle.Milliseconds():
		t.finish(IdleTooLong)
	}
}

func (t *Tunnel) finish(why Why) {
	if t.over {
		return
	}
	t.over = true
	t.end.Why = why
	delete(t.loop.tunnels, t)
	for _, s := range []*stream{&t.up, &t.down} {
		t.release(s)
	}
	t.loop.CloseFD(t.client.fd)
	t.loop.CloseFD(t.upstream.fd)
	t.keeper.Ended(t.end)
}
