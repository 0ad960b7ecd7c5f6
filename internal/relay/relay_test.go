package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A keeper for tests: judge says what First says.
type keeper struct {
	judge func(first []byte) (Judgement, []byte)
	ended chan End
	seen  [][]byte
}

func (k *keeper) First(first []byte) (Judgement, []byte) {
	k.seen = append(k.seen, bytes.Clone(first))
	return k.judge(first)
}

func (k *keeper) Ended(e End) { k.ended <- e }

func pass([]byte) (Judgement, []byte) { return Pass, nil }

// A world is one tunnel between a client and an upstream on loopback.
type world struct {
	loop             *Loop
	client, upstream net.Conn // the far ends
	keeper           *keeper
	tunnel           Tunnel
}

func newLoop(t *testing.T) *Loop {
	t.Helper()
	loop, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- loop.Run() }()
	t.Cleanup(func() {
		loop.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return loop
}

var generous = Limits{First: time.Minute, FirstBytes: 64 << 10, Idle: time.Minute, Life: time.Hour, ServerFirst: true}

func newWorld(t *testing.T, judge func([]byte) (Judgement, []byte), limits Limits) *world {
	t.Helper()
	w := &world{loop: newLoop(t), keeper: &keeper{judge: judge, ended: make(chan End, 1)}}
	client, near := tcpPair(t)
	upstream, far := tcpPair(t)
	w.client, w.upstream = client, upstream
	ready := make(chan struct{})
	w.loop.Post(func() {
		w.loop.Carry(&w.tunnel, near, far, nil, w.keeper, &limits)
		close(ready)
	})
	<-ready
	return w
}

func (w *world) start() *world {
	w.loop.Post(w.tunnel.Start)
	return w
}

func (w *world) end(t *testing.T) End {
	t.Helper()
	select {
	case e := <-w.keeper.ended:
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("the tunnel did not end")
		return End{}
	}
}

// tcpPair returns one end of a connection as a net.Conn and the other as a
// non-blocking descriptor that the tunnel will own.
func tcpPair(t testing.TB) (net.Conn, int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	f, err := near.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	return far, fd
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := c.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(30 * time.Second))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", got, err, want)
	}
}

// nothing reports bytes that come within a moment.
func nothing(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	b := make([]byte, 16)
	if n, err := c.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %q, %v; want nothing yet", b[:n], err)
	}
}

func TestBytesGoBothWaysAndAreCounted(t *testing.T) {
	w := newWorld(t, pass, generous).start()
	send(t, w.client, "to the upstream")
	expect(t, w.upstream, "to the upstream")
	send(t, w.upstream, "back")
	expect(t, w.client, "back")
	w.client.Close()
	w.upstream.Close()
	if e := w.end(t); e.Up != 15 || e.Down != 4 || e.Why != Closed {
		t.Errorf("ended as %+v", e)
	}
}

func TestNothingPassesBeforeStart(t *testing.T) {
	w := newWorld(t, pass, generous)
	send(t, w.client, "early")
	send(t, w.upstream, "greeting")
	nothing(t, w.upstream)
	nothing(t, w.client)
	w.start()
	expect(t, w.upstream, "early")
	expect(t, w.client, "greeting")
}

func TestFirstBytesWaitForTheirJudgement(t *testing.T) {
	judge := func(first []byte) (Judgement, []byte) {
		if len(first) < 6 {
			return More, nil
		}
		return Pass, nil
	}
	w := newWorld(t, judge, generous).start()
	send(t, w.client, "abc")
	nothing(t, w.upstream)
	send(t, w.upstream, "the upstream may speak")
	expect(t, w.client, "the upstream may speak")
	send(t, w.client, "def")
	expect(t, w.upstream, "abcdef")
	send(t, w.client, "ghi")
	expect(t, w.upstream, "ghi")
}

func TestWhereTheClientSpeaksFirstTheUpstreamWaits(t *testing.T) {
	web := generous
	web.ServerFirst = false
	w := newWorld(t, pass, web).start()
	send(t, w.upstream, "unasked")
	nothing(t, w.client)
	send(t, w.client, "hello")
	expect(t, w.client, "unasked")

	w = newWorld(t, pass, web).start()
	w.client.(*net.TCPConn).CloseWrite()
	if e := w.end(t); e.Why != FirstEnded || e.Down != 0 {
		t.Errorf("a client that never spoke: %+v", e)
	}
}

// TestASlowReaderIsNotIdle has an upstream that is done, all of whose bytes
// are in the tunnel's pipe, and a client that takes its time.
func TestASlowReaderIsNotIdle(t *testing.T) {
	short := generous
	short.Idle = 3 * time.Second // less than the reading takes, more than a busy machine pauses
	w := newWorld(t, pass, short).start()
	w.client.(*net.TCPConn).SetReadBuffer(16 << 10)
	small := make(chan error)
	w.loop.Post(func() {
		small <- syscall.SetsockoptInt(int(w.tunnel.client.fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 16<<10)
	})
	if err := <-small; err != nil {
		t.Fatal(err)
	}
	const size = 900 << 10
	go w.upstream.Write(make([]byte, size))
	for got, buf := 0, make([]byte, 30<<10); got < size; {
		n, err := io.ReadFull(w.client, buf)
		if got += n; err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
		time.Sleep(130 * time.Millisecond)
	}
}

// TestAnEventForAnEarlierOwnerIsNotPassedOn plays an event that waits in the
// same batch as the close of its descriptor.
func TestAnEventForAnEarlierOwnerIsNotPassedOn(t *testing.T) {
	loop := newLoop(t)
	told := make(chan bool)
	_, fd := tcpPair(t)
	loop.Post(func() {
		first, second := counter(0), counter(0)
		loop.Watch(fd, &first)
		old := event{Events: uint32(canWrite), Fd: int32(fd), Pad: loop.at(fd).generation}
		loop.Forget(fd)
		loop.Watch(fd, &second)
		loop.dispatch(old)
		told <- first == 0 && second == 0
		loop.CloseFD(fd)
	})
	if !<-told {
		t.Error("the new owner was told of the old one's event")
	}
}

type counter int

func (c *counter) Ready(Events) { *c++ }

func TestRefusedFirstBytesNeverReachTheUpstream(t *testing.T) {
	w := newWorld(t, func([]byte) (Judgement, []byte) { return Refuse, []byte("no") }, generous).start()
	send(t, w.client, "secret")
	expect(t, w.client, "no")
	if got, err := io.ReadAll(w.upstream); len(got) > 0 {
		t.Errorf("the upstream got %q, %v", got, err)
	}
	if e := w.end(t); e.Up != 0 || e.Why != Refused {
		t.Errorf("ended as %+v", e)
	}
}

func TestFirstBytesAreBounded(t *testing.T) {
	limits := generous
	limits.FirstBytes = 1000
	w := newWorld(t, func([]byte) (Judgement, []byte) { return More, nil }, limits).start()
	send(t, w.client, string(make([]byte, 1001)))
	if e := w.end(t); e.Why != Refused {
		t.Errorf("ended as %+v", e)
	}
}

func TestHalfCloseIsPassedOnAndTheOtherHalfGoesOn(t *testing.T) {
	w := newWorld(t, pass, generous).start()
	send(t, w.client, "request")
	w.client.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(w.upstream); string(got) != "request" || err != nil {
		t.Fatalf("upstream read %q, %v", got, err)
	}
	send(t, w.upstream, "late answer")
	w.upstream.Close()
	if got, err := io.ReadAll(w.client); string(got) != "late answer" || err != nil {
		t.Fatalf("client read %q, %v", got, err)
	}
	w.client.Close()
	w.end(t)
}

func TestCutResetsBothSides(t *testing.T) {
	w := newWorld(t, pass, generous).start()
	send(t, w.client, "x")
	expect(t, w.upstream, "x")
	w.loop.Post(w.tunnel.Cut)
	if e := w.end(t); e.Why != WasCut {
		t.Errorf("ended as %+v", e)
	}
	for _, c := range []net.Conn{w.client, w.upstream} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read after the cut: %v", err)
		}
	}
}

// TestEveryTunnelOfALoopEnds ends tunnels from the middle, the beginning and
// the end of the loop's list, and has the loop end the others: by its sweep,
// and when it is closed.
func TestEveryTunnelOfALoopEnds(t *testing.T) {
	idle := generous
	idle.Idle = 500 * time.Millisecond
	for why, limits := range map[Why]Limits{IdleTooLong: idle, WasCut: generous} {
		loop, ended := newLoop(t), make(chan End, 8)
		tunnels := make([]Tunnel, cap(ended))
		var ends [][2]int
		for range tunnels {
			_, near := tcpPair(t)
			_, far := tcpPair(t)
			ends = append(ends, [2]int{near, far})
		}
		loop.Post(func() {
			for i := range tunnels {
				loop.Carry(&tunnels[i], ends[i][0], ends[i][1], nil, &keeper{judge: pass, ended: ended}, &limits)
			}
			for _, i := range []int{3, 0, 7} {
				tunnels[i].finish(Closed)
			}
		})
		for range 3 {
			if e := <-ended; e.Why != Closed {
				t.Errorf("ended as %+v", e)
			}
		}
		if why == WasCut {
			loop.Close()
		}
		for range 5 {
			if e := <-ended; e.Why != why {
				t.Errorf("ended as %+v, want %s", e, why)
			}
		}
	}
}

func TestDescriptorsOfAnyNumberAreWatched(t *testing.T) {
	loop := newLoop(t)
	client, near := tcpPair(t)
	const high = 3000
	fd, err := unix.FcntlInt(uintptr(near), unix.F_DUPFD_CLOEXEC, high)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Close(near)
	told := make(ready, 1)
	loop.Post(func() { loop.WatchListener(fd, told) })
	send(t, client, "x")
	if e := <-told; !e.Readable() {
		t.Errorf("told %v", e)
	}
	done := make(chan bool)
	loop.Post(func() { loop.CloseFD(fd); close(done) })
	<-done
}

// ready passes on what it is told first.
type ready chan Events

func (r ready) Ready(e Events) {
	select {
	case r <- e:
	default:
	}
}

// TestAnInstantStartsOver compares times from both sides of the overflow.
func TestAnInstantStartsOver(t *testing.T) {
	var before, after instant = 1<<32 - 1000, 500
	if d := after.since(before); d != 1500*time.Millisecond {
		t.Errorf("%v passed", d)
	}
}

func TestTimeLimits(t *testing.T) {
	short := Limits{First: 600 * time.Millisecond, FirstBytes: 100, Idle: time.Minute, Life: time.Hour}
	t.Run("a silent client", func(t *testing.T) {
		if e := newWorld(t, pass, short).start().end(t); e.Why != FirstLate {
			t.Errorf("ended as %+v", e)
		}
	})
	t.Run("an idle tunnel", func(t *testing.T) {
		idle := generous
		idle.Idle = 600 * time.Millisecond
		w := newWorld(t, pass, idle)
		send(t, w.client, "x")
		w.start()
		if e := w.end(t); e.Why != IdleTooLong || e.Up != 1 {
			t.Errorf("ended as %+v", e)
		}
	})
	t.Run("a tunnel that has lasted long enough, and is busy", func(t *testing.T) {
		aging := generous
		aging.Life = 600 * time.Millisecond
		w := newWorld(t, pass, aging).start()
		go io.Copy(w.upstream, w.upstream)
		began := time.Now()
		w.client.SetDeadline(began.Add(30 * time.Second))
		for one := []byte("x"); ; {
			if _, err := w.client.Write(one); err != nil {
				break
			}
			if _, err := io.ReadFull(w.client, one); err != nil {
				break
			}
		}
		e, lasted := w.end(t), time.Since(began)
		if e.Why != TooOld || e.Up == 0 || lasted < aging.Life-100*time.Millisecond {
			t.Errorf("ended after %v as %+v", lasted, e)
		}
	})
	t.Run("a server that speaks first may be listened to", func(t *testing.T) {
		first := short
		first.ServerFirst = true
		w := newWorld(t, pass, first).start()
		send(t, w.upstream, "banner")
		expect(t, w.client, "banner")
		time.Sleep(2 * short.First)
		send(t, w.client, "answer")
		expect(t, w.upstream, "answer")
	})
}

func TestTimersRunInOrderAndStop(t *testing.T) {
	loop := newLoop(t)
	ran := make(chan int, 4)
	loop.Post(func() {
		loop.After(40*time.Millisecond, func() { ran <- 2 })
		loop.After(20*time.Millisecond, func() { ran <- 1 })
		loop.Stop(loop.After(10*time.Millisecond, func() { ran <- 0 }))
		loop.Stop(nil)
	})
	if first, second := <-ran, <-ran; first != 1 || second != 2 {
		t.Errorf("ran %d, then %d", first, second)
	}
}

func TestPostAfterClose(t *testing.T) {
	loop, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	loop.Close()
	if err := loop.Run(); err != nil {
		t.Fatal(err)
	}
	if loop.Post(func() {}) {
		t.Error("Post was taken after Close")
	}
}
