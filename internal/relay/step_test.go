//go:build linux

package relay

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"
)

// ends returns both ends of a connection as descriptors.
func ends(t *testing.T) (near, far int) {
	t.Helper()
	fds, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fds[1]) })
	return fds[0], fds[1]
}

// A stepped tunnel is on a loop that does not run: what happens to it, the test says.
type stepped struct {
	Tunnel
	loop             *Loop
	client, upstream int // the far ends
	ended            []End
	onEnd            func()
}

func (s *stepped) First([]byte) (Judgement, []byte) { return More, nil }

func (s *stepped) Ended(e End) {
	s.ended = append(s.ended, e)
	if s.onEnd != nil {
		s.onEnd()
	}
}

func newStepped(t *testing.T, limits *Limits) *stepped {
	t.Helper()
	loop, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	s := &stepped{loop: loop}
	var client, upstream int
	client, s.client = ends(t)
	upstream, s.upstream = ends(t)
	loop.share = eventShare
	loop.Carry(&s.Tunnel, client, upstream, nil, s, limits)
	t.Cleanup(func() {
		loop.cutAll()
		loop.release()
	})
	return s
}

// pass has the tunnel carry from now on.
func (s *stepped) pass() *stepped {
	s.judged, s.started = true, true
	s.step()
	return s
}

// TestAnEndBehindTheLastBytesIsSeen has both come with one event: there is no other.
func TestAnEndBehindTheLastBytesIsSeen(t *testing.T) {
	s := newStepped(t, &generous).pass()
	if s.Tunnel.client.hangup {
		t.Fatal("nothing has come, and an end is looked for")
	}
	syscall.Write(s.client, []byte("last"))
	syscall.Shutdown(s.client, syscall.SHUT_WR)
	(*clientSide)(&s.Tunnel).Ready(CanRead | readEnded)
	b := make([]byte, 16)
	if n, err := syscall.Read(s.upstream, b); string(b[:max(n, 0)]) != "last" {
		t.Fatalf("%q, %v", b[:max(n, 0)], err)
	}
	if n, err := syscall.Read(s.upstream, b); n != 0 || err != nil {
		t.Errorf("after the last bytes comes no end: %d, %v", n, err)
	}
}

// TestWhatIsOverTouchesNothing has the upstream's number belong to somebody else by the time
// that a tunnel has ended for its budget in the middle of a step.
func TestWhatIsOverTouchesNothing(t *testing.T) {
	limits := generous
	limits.Up = 3
	s := newStepped(t, &limits).pass()
	number := int(s.Tunnel.upstream.fd)
	near, far := ends(t)
	defer syscall.Close(near)
	if _, err := syscall.Write(far, []byte("theirs")); err != nil {
		t.Fatal(err)
	}
	s.onEnd = func() {
		if err := syscall.Dup3(near, number, syscall.O_CLOEXEC); err != nil {
			t.Error(err)
		}
	}
	defer syscall.Close(number)
	if _, err := syscall.Write(s.client, []byte("more")); err != nil {
		t.Fatal(err)
	}
	s.Tunnel.upstream.readable = true
	(*clientSide)(&s.Tunnel).Ready(CanRead)
	if len(s.ended) != 1 || s.ended[0].Why != OverBudget {
		t.Fatalf("ended as %+v", s.ended)
	}
	b := make([]byte, 16)
	if n, err := syscall.Read(near, b); string(b[:max(n, 0)]) != "theirs" {
		t.Errorf("of somebody else's connection is left %q, %v", b[:max(n, 0)], err)
	}
}

// TestWhatWaitsCountsForTheBudget: bytes that were read and are not sent yet.
func TestWhatWaitsCountsForTheBudget(t *testing.T) {
	s := newStepped(t, &generous).pass()
	s.up.count = 3
	s.up.keep([]byte("12345"))
	if got := s.taken(); got != 8 {
		t.Errorf("3 bytes sent and 5 that wait are %d", got)
	}
	s.up.rest = nil
	s.up.pipe = s.loop.borrow()
	if s.up.pipe == nil { // a system without splice(2)
		return
	}
	s.up.pipe.held = 7
	if got := s.taken(); got != 10 {
		t.Errorf("3 bytes sent and 7 in a pipe are %d", got)
	}
	s.Limit(9)
	if len(s.ended) != 1 || s.ended[0].Why != OverBudget {
		t.Errorf("with a budget of 9: %+v", s.ended)
	}
}

// TestAClientsTimeBeginsWithItsFirstByte, and does not begin again with the next. The
// tunnel's life has begun before.
func TestAClientsTimeBeginsWithItsFirstByte(t *testing.T) {
	limits := Limits{First: 2 * time.Second, FirstBytes: 100, Idle: time.Minute, Life: 10 * time.Second, ServerFirst: true}
	for _, row := range []struct {
		says   string
		drip   []int // seconds at which the client sends a byte
		server int64 // bytes that the upstream has sent
		look   int   // when it is looked
		why    Why
	}{
		{"nobody speaks", nil, 0, 2, FirstLate},
		{"the upstream alone speaks", nil, 1, 3, ""},
		{"the client drips", []int{3, 4}, 1, 5, FirstLate},
		{"the client has time", []int{3, 4}, 1, 4, ""},
		{"the tunnel is old", []int{9}, 1, 10, TooOld},
	} {
		s := newStepped(t, &limits)
		s.down.count = row.server
		at := func(second int) { s.loop.instant = s.begun + instant(second*1000) }
		for _, second := range row.drip {
			at(second)
			syscall.Write(s.client, []byte("x"))
			(*clientSide)(&s.Tunnel).Ready(CanRead)
		}
		at(row.look)
		s.checkTime()
		if got := append(s.ended, End{})[0].Why; got != row.why {
			t.Errorf("%s: after %d s it is ended as %q, want %q", row.says, row.look, got, row.why)
		}
	}
}

// TestATimerThatIsOverStopsNoOther: its place in the heap is another's.
func TestATimerThatIsOverStopsNoOther(t *testing.T) {
	loop := &Loop{}
	over, other := loop.After(-time.Second, func() {}), loop.After(time.Hour, func() {})
	loop.now = time.Now()
	loop.runTimers()
	loop.Stop(over)
	if len(loop.timers) != 1 || loop.timers[0] != other {
		t.Errorf("%d timers are left", len(loop.timers))
	}
	if ms := loop.timers.waitFor(other.at.Add(-1500 * time.Microsecond)); ms != 2 {
		t.Errorf("for a timer in 1.5 ms it waits %d ms", ms)
	}
}

// TestWhatIsBeyondTheBudgetDoesNotPassForAll: both sides see a reset, and no orderly end.
func TestWhatIsBeyondTheBudgetDoesNotPassForAll(t *testing.T) {
	limits := generous
	limits.Up = 1000
	w := newWorld(t, pass, limits).start()
	send(t, w.client, "x")
	expect(t, w.upstream, "x")
	w.client.Write(bytes.Repeat([]byte("y"), 2000))
	w.upstream.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, w.upstream); !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the upstream sees %v", err)
	}
	if e := w.end(t); e.Why != OverBudget {
		t.Errorf("ended as %+v", e)
	}
}

// TestASlowReaderKeepsATunnelFromBeingIdle: nothing is read, and a byte that waited is sent.
func TestASlowReaderKeepsATunnelFromBeingIdle(t *testing.T) {
	s := newStepped(t, &generous).pass()
	s.up.keep([]byte("x"))
	s.loop.instant += 5000
	(*upstreamSide)(&s.Tunnel).Ready(canWrite)
	if s.up.count != 1 || s.moved != s.loop.instant {
		t.Errorf("%d bytes were sent, and the tunnel has been idle for %v", s.up.count, s.loop.instant.since(s.moved))
	}
}
