package relay

import (
	"sync/atomic"
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
	Follow                  // as Pass, and the keeper, a [Follower], looks at what comes next
	Await                   // as Follow, of something that has to be whole within Limits.First of the first Await
	Hold                    // the keeper needs time: nothing more is read from the client until Again
)

// A Keeper is who a tunnel belongs to.
type Keeper interface {
	// First judges everything the client has sent so far. The tunnel calls it for each
	// piece while First returns More and the client has time left. After Hold, only
	// [Tunnel.Again] calls First, with the same bytes. first is valid during the call only.
	// After Refuse, the tunnel sends farewell (nil for nothing) to the client.
	First(first []byte) (j Judgement, farewell []byte)
	// Ended is called once, when both descriptors are closed, except after
	// Take.
	Ended(End)
}

// A Follower is a keeper that looks at what passes for some time.
type Follower interface {
	Keeper
	// Follow looks at the next bytes, which go up to the upstream, or down to the
	// client, before they are passed on. It is called until it says something else
	// than Follow or Await: Pass, or Refuse, after which they go nowhere, and farewell is sent to the
	// client, or, of bytes that go up, More or Hold: then they, and what comes behind them, are first bytes again, which First
	// judges: at once after More, and after Hold when Again is called. next is valid during the call only.
	Follow(up bool, next []byte) (j Judgement, farewell []byte)
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
	TooOld      Why = "lifetime"         // it has lasted as long as a tunnel may
	FirstLate   Why = "first-bytes-late" // the client's first bytes, or what was awaited, were not complete in time
	Refused     Why = "refused"          // the keeper refused the first bytes, or those that it followed
	FirstEnded  Why = "client-left"      // the client ended before its first bytes were complete
	WasCut      Why = "cut"
	OverBudget  Why = "byte-budget" // the client had more to send than it may
)

// Limits bound a tunnel in time and size.
type Limits struct {
	First      time.Duration // until the client's first bytes are judged, and what is awaited; as all of these, at most 49 days
	FirstBytes int           // most bytes held for that
	Idle       time.Duration // without a byte either way
	Life       time.Duration // from Carry to the end, whatever moves; 0 ends the tunnel at once
	// ServerFirst lets the upstream speak before the client was judged: then
	// First counts from the client's own first byte.
	ServerFirst bool
	// Up is how many bytes of payload may go to the upstream; 0 means any number.
	// A tunnel can have another one, see [Tunnel.Limit].
	Up int64
	// Meter counts what passes; it may be shared by tunnels of several loops, and
	// nil.
	Meter *Meter
}

// A Meter counts the payload bytes of some tunnels, as they pass. It is safe for
// concurrent use.
type Meter struct{ Up, Down atomic.Int64 }

// A side is one descriptor and what is known of it. Readiness is edge-
// triggered: a flag stands until the call that would block.
type side struct {
	fd       int32
	readable bool
	writable bool
	ended    bool // its stream has been read to the end
	hangup   bool // an end may be waiting behind the last bytes: read until nothing comes
	shut     bool // its sending half has been shut down
	followed bool // the keeper, a Follower, looks at what comes from it
	awaited  bool // and has kept some of it, which it does not for long
	held     bool // the keeper has said Hold of its bytes, and nobody has called Again
}

// A stream is the bytes of one direction.
type stream struct {
	count int64   // passed on
	rest  *[]byte // read, and not yet passed on; nil where there are none
	pipe  *pipe   // borrowed while the stream is busy
}

// keep has b, which may be the loop's buffer, passed on later.
func (s *stream) keep(b []byte) {
	s.rest = nil
	if len(b) > 0 {
		rest := append([]byte(nil), b...)
		s.rest = &rest
	}
}

// A Tunnel carries bytes between two descriptors, which it owns. It is part of a larger struct, its keeper.
// Thousands of tunnels are idle at a time, so each word counts: rarely used fields are behind a pointer.
type Tunnel struct {
	loop             *Loop
	keeper           Keeper
	limits           *Limits
	next, prev       *Tunnel // of the loop
	up, down         stream  // up.rest holds the client's first bytes while they are judged
	client, upstream side
	begun            instant
	born             instant // when the time for the first bytes, or for what is awaited, began to run
	moved            instant // when a byte last did
	judged           bool
	started          bool
	over             bool
	busy             bool // it waits for its turn
}

// Carry begins t, which is zero, as a tunnel in which nothing passes before
// Start, and no client byte before keeper has said Pass. first holds client
// bytes that were read already. limits is shared and must not change.
func (l *Loop) Carry(t *Tunnel, client, upstream int, first []byte, keeper Keeper, limits *Limits) {
	t.loop, t.keeper, t.limits = l, keeper, limits
	t.begun, t.born, t.moved = l.instant, l.instant, l.instant
	t.client, t.upstream = l.side(client), l.side(upstream)
	l.tunnels.add(t)
	if l.Watch(client, (*clientSide)(t)) != nil || l.Watch(upstream, (*upstreamSide)(t)) != nil {
		t.finish(Broken)
		return
	}
	if len(first) > 0 {
		t.judge(first)
	}
}

// side returns the known state of a descriptor. An earlier handler may have received an event for bytes or an
// end without reading them; events that no handler received are still to come.
func (l *Loop) side(fd int) side {
	seen := l.at(fd).seen
	return side{fd: int32(fd), readable: seen.Readable(), writable: true, hangup: seen.Hangup()}
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
		Reset(int(t.client.fd))
		Reset(int(t.upstream.fd))
		t.finish(WasCut)
	}
}

// Down counts the bytes that went to the client so far.
func (t *Tunnel) Down() int64 { return t.down.count }

type clientSide Tunnel

func (c *clientSide) Ready(e Events) { (*Tunnel)(c).ready(&c.client, e) }

type upstreamSide Tunnel

func (u *upstreamSide) Ready(e Events) { (*Tunnel)(u).ready(&u.upstream, e) }

func (t *Tunnel) ready(s *side, e Events) {
	s.readable = s.readable || e.Readable()
	s.writable = s.writable || e.Writable()
	s.hangup = s.hangup || e.Hangup()
	if t.client.held && s == &t.client && e.Broken() {
		t.finish(FirstEnded) // nobody reads from it, who would see that
		return
	}
	if t.busy && !e.Hangup() {
		return // it has a turn soon
	}
	t.step()
	if s.ended && e&failed != 0 { // looked at after the step, which may be what found the end
		t.finish(Broken)
	}
}

// step moves what can be moved.
func (t *Tunnel) step() {
	if !t.judged && !t.client.held && t.client.readable {
		t.readFirst()
	}
	if t.over || !t.started {
		return
	}
	up := !t.judged || t.move(&t.up, &t.client, &t.upstream)
	if t.over { // and its descriptors are somebody else's by now
		return
	}
	down := !t.judged && !t.limits.ServerFirst || t.move(&t.down, &t.upstream, &t.client)
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
	for !t.judged && !t.client.held && !t.over && t.client.readable {
		n, errno := readFD(int(t.client.fd), t.loop.buffer)
		switch {
		case errno == syscall.EAGAIN:
			t.client.readable, t.client.hangup = false, false
			return
		case errno != 0 || n == 0:
			t.firstEnded(errno)
			return
		case n < len(t.loop.buffer) && !t.client.hangup:
			t.client.readable = false // as in fetch
		}
		t.moved = t.loop.instant
		if t.up.rest == nil {
			t.born = t.moved
		}
		b := t.loop.buffer[:n]
		if t.up.rest != nil {
			b = append(*t.up.rest, b...)
		}
		t.judge(b)
	}
}

// firstEnded is a client that ends before its first bytes are judged: where it
// never sent one, that is a half-close.
func (t *Tunnel) firstEnded(errno syscall.Errno) {
	if errno != 0 || t.up.rest != nil || !t.limits.ServerFirst {
		t.finish(FirstEnded)
		return
	}
	t.client.ended, t.client.readable = true, false
	t.judged = true
}

func (t *Tunnel) judge(first []byte) {
	verdict, farewell := t.keeper.First(first)
	t.client.held = verdict == Hold
	switch {
	case t.client.held:
		t.hold(first)
	case verdict != More || len(first) > t.limits.FirstBytes:
		t.apply(verdict, farewell, first)
	default:
		t.hold(first)
	}
}

// hold keeps first bytes to be judged again. It may be called with those that are kept already.
func (t *Tunnel) hold(first []byte) {
	if t.up.rest != nil {
		*t.up.rest = first
		return
	}
	t.up.keep(first)
}

func (t *Tunnel) apply(verdict Judgement, farewell, first []byte) {
	t.up.rest = nil
	switch verdict {
	case Pass, Follow, Await:
		t.judged = true
		t.following(verdict)
		if !t.fits(len(first)) {
			t.exceed()
			return
		}
		t.passFirst(first)
	case Take:
		t.leave()
	default:
		t.refuse(farewell)
	}
}

func (t *Tunnel) refuse(farewell []byte) {
	if len(farewell) > 0 {
		writeFD(int(t.client.fd), farewell)
	}
	t.finish(Refused)
}

// following notes what the keeper wants to see from now on.
func (t *Tunnel) following(verdict Judgement) {
	if verdict == Await && !t.client.awaited {
		t.born = t.loop.instant
	}
	looks := verdict != Pass
	t.client.followed, t.upstream.followed = looks, looks
	t.client.awaited = looks && (verdict == Await || t.client.awaited)
}

// follow has the keeper look at bytes of s, and reports whether they may go. Where they
// may not, they are taken care of, and the tunnel may be over.
func (t *Tunnel) follow(s *stream, next []byte) bool {
	keeper, ok := t.keeper.(Follower)
	if !ok {
		t.refuse(nil)
		return false
	}
	verdict, farewell := keeper.Follow(s == &t.up, next)
	switch {
	case verdict == Follow || verdict == Await || verdict == Pass:
		t.following(verdict)
		return true
	case (verdict == More || verdict == Hold) && s == &t.up:
		t.following(Pass)
		t.judged, t.born = false, t.loop.instant
		if t.client.held = verdict == Hold; t.client.held {
			t.hold(next)
			return false
		}
		if t.judge(next); !t.over {
			t.wait() // for what was not read yet
		}
	default:
		t.refuse(farewell)
	}
	return false
}

// Again calls the keeper's First once more with the client's first bytes, after More or Hold.
func (t *Tunnel) Again() {
	if t.over || t.judged || t.up.rest == nil {
		return
	}
	t.judge(*t.up.rest)
	if !t.over {
		t.step()
	}
}

// passFirst sends the judged bytes at once where it may: they stand in the
// loop's buffer and must not wait there.
func (t *Tunnel) passFirst(first []byte) {
	n := 0
	if t.started {
		n, _ = writeFD(int(t.upstream.fd), first)
		n = max(n, 0)
		t.up.count += int64(n)
		t.meter(&t.up, int64(n))
	}
	t.up.keep(first[n:])
}

// checkTime ends a tunnel whose time is over.
func (t *Tunnel) checkTime() {
	now := t.loop.instant
	waiting := t.client.awaited || !t.judged && (t.up.rest != nil || !t.limits.ServerFirst || t.down.count == 0)
	switch {
	case waiting && now.since(t.born) >= t.limits.First:
		t.finish(FirstLate)
	case now.since(t.moved) >= t.limits.Idle:
		t.finish(IdleTooLong)
	case now.since(t.begun) >= t.limits.Life:
		t.finish(TooOld)
	}
}

func (t *Tunnel) finish(why Why) {
	if t.over {
		return
	}
	t.leave()
	if t.brokenOff(why) {
		Reset(int(t.upstream.fd))
	}
	t.loop.CloseFD(int(t.client.fd))
	t.loop.CloseFD(int(t.upstream.fd))
	t.keeper.Ended(End{Up: t.up.count, Down: t.down.count, Why: why})
}

// brokenOff reports whether the upstream gets a reset instead of an orderly end. It does if the client's first
// or followed bytes did not reach it, if the client broke off, or if the client had ended both directions when
// an error occurred. An orderly end would keep the local port from the next connection to the same address for
// a minute (TIME-WAIT).
func (t *Tunnel) brokenOff(why Why) bool {
	switch why {
	case FirstEnded, FirstLate, Refused:
		return true
	case Broken:
		return isReset(int(t.client.fd))
	}
	return false
}

// leave ends the tunnel as the loop's.
func (t *Tunnel) leave() {
	t.over = true
	t.loop.tunnels.remove(t)
	t.release(&t.up)
	t.release(&t.down)
}
