package carry

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/record"
)

// A carried is a tunnel with the far ends of its connections.
type carried struct {
	Tunnel
	client, upstream net.Conn
	meter            Meter
	end              chan End
	most             int64 // bytes that may go up; 0: any number
	spent            atomic.Int64
}

func (c *carried) Ended(e End) { c.end <- e }

// Spend lets all pass, unless the test has said how much.
func (c *carried) Spend(bytes int) bool {
	return c.most == 0 || c.spent.Add(int64(bytes)) <= c.most
}

// begun returns a tunnel in which nothing passes yet.
func begun(t testing.TB, s *Set, network string, limits Limits) *carried {
	t.Helper()
	c := &carried{end: make(chan End, 1)}
	limits.Meter = &c.meter
	var near, far net.Conn
	c.client, near = pair(t, network)
	c.upstream, far = pair(t, network)
	s.Begin(&c.Tunnel, near, far, c, &limits)
	return c
}

func pair(t testing.TB, network string) (one, other net.Conn) {
	t.Helper()
	at := "127.0.0.1:0"
	if network == "unix" {
		at = t.TempDir() + "/s"
	}
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if one, err = net.Dial(network, l.Addr().String()); err == nil {
		other, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { one.Close() })
	one.SetDeadline(time.Now().Add(time.Minute))
	return one, other
}

func (c *carried) ended(t *testing.T, want record.Outcome) End {
	t.Helper()
	select {
	case e := <-c.end:
		if e.Outcome != want {
			t.Errorf("it ended by %q, want %q", e.Outcome, want)
		}
		if up, down := c.meter.Up.Load(), c.meter.Down.Load(); up != e.Up || down != e.Down {
			t.Errorf("the meter has %d and %d, the end %d and %d", up, down, e.Up, e.Down)
		}
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	return End{}
}

var forever = Limits{Idle: time.Hour, Life: time.Hour}

// newSet returns a set of which nothing is left when the test ends.
func newSet(t *testing.T) *Set {
	s := new(Set)
	t.Cleanup(func() {
		s.Wait()
		s.Close()
		if s.pipes.out != 0 {
			t.Errorf("%d pipes are still borrowed", s.pipes.out)
		}
	})
	return s
}

// TestAllBytesArriveBothWays, many and few, at once, and then both ends.
func TestAllBytesArriveBothWays(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, size := range []int{0, 1, bufferSize, bufferSize + 1, 20 << 20} {
			c := begun(t, newSet(t), network, forever)
			c.Down()
			c.Up(nil)
			all := make([]byte, size)
			for i := range all {
				all[i] = byte(rand.Uint32())
			}
			var both sync.WaitGroup
			for _, side := range [][2]net.Conn{{c.client, c.upstream}, {c.upstream, c.client}} {
				both.Go(func() {
					for rest := all; len(rest) > 0; {
						n := min(len(rest), 1+rand.IntN(300<<10))
						side[0].Write(rest[:n])
						rest = rest[n:]
					}
					side[0].(interface{ CloseWrite() error }).CloseWrite()
				})
				both.Go(func() {
					if got, err := io.ReadAll(side[1]); err != nil || !bytes.Equal(got, all) {
						t.Errorf("%s: %d of %d bytes arrived, %v", network, len(got), size, err)
					}
				})
			}
			both.Wait()
			if e := c.ended(t, record.OutcomeClosed); e.Up != int64(size) || e.Down != int64(size) {
				t.Errorf("%s: it counted %d and %d of %d", network, e.Up, e.Down, size)
			}
		}
	}
}

// TestAnEndOfOneSideLeavesTheOther, whichever it is.
func TestAnEndOfOneSideLeavesTheOther(t *testing.T) {
	for says, ends := range map[string]func(c *carried) (first, second net.Conn){
		"the client":   func(c *carried) (_, _ net.Conn) { return c.client, c.upstream },
		"the upstream": func(c *carried) (_, _ net.Conn) { return c.upstream, c.client },
	} {
		c := begun(t, newSet(t), "tcp", forever)
		c.Down()
		c.Up(nil)
		first, second := ends(c)
		io.WriteString(first, "bye")
		first.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(second); string(got) != "bye" || err != nil {
			t.Errorf("%s: read %q, %v", says, got, err)
		}
		time.Sleep(2 * sweepEvery) // the half that is left is no failure
		io.WriteString(second, "still here")
		second.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(first); string(got) != "still here" || err != nil {
			t.Errorf("%s: read %q, %v", says, got, err)
		}
		c.ended(t, record.OutcomeClosed)
	}
}

// TestAResetReachesTheOtherSide while nothing moves, also from a side that has ended its half before.
func TestAResetReachesTheOtherSide(t *testing.T) {
	for says, ends := range map[string]func(c *carried) (first, second net.Conn){
		"the client":   func(c *carried) (_, _ net.Conn) { return c.client, c.upstream },
		"the upstream": func(c *carried) (_, _ net.Conn) { return c.upstream, c.client },
	} {
		for _, half := range []bool{false, true} {
			if half && runtime.GOOS != "linux" {
				continue
			}
			c := begun(t, newSet(t), "tcp", forever)
			c.Down()
			c.Up(nil)
			first, second := ends(c)
			if half {
				first.(*net.TCPConn).CloseWrite()
				io.ReadAll(second)
				second.SetReadDeadline(time.Now().Add(time.Minute))
			}
			first.(*net.TCPConn).SetLinger(0)
			first.Close()
			c.ended(t, record.OutcomeReset)
			var err error
			if half { // it has read to the end, and only learns it as it writes
				for late := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(late); {
					_, err = second.Write([]byte("x"))
				}
			} else {
				_, err = io.ReadAll(second)
			}
			if !errors.Is(err, syscall.ECONNRESET) && !(half && errors.Is(err, syscall.EPIPE)) {
				t.Errorf("%s, half closed %v: the other side saw %v", says, half, err)
			}
		}
	}
}

// TestNoByteBeyondTheBudgetGoesUp, in small pieces, in large ones, and if the budget shrinks.
func TestNoByteBeyondTheBudgetGoesUp(t *testing.T) {
	for _, row := range []struct {
		budget       int64
		first, piece int
	}{{1000, 0, 1}, {1000, 1000, 1}, {1000, 1001, 1}, {1000, 400, 7}, {3<<20 + 5, 0, 100 << 10}, {bufferSize, 0, bufferSize}} {
		c := begun(t, newSet(t), "tcp", forever)
		c.Limit(row.budget)
		c.Down()
		arrived := make(chan int64)
		go func() {
			n, _ := io.Copy(io.Discard, c.upstream)
			arrived <- n
		}()
		c.Up(make([]byte, row.first))
		piece := make([]byte, row.piece)
		for {
			if _, err := c.client.Write(piece); err != nil {
				break
			}
		}
		e := c.ended(t, OverBudget)
		if got := <-arrived; e.Up > row.budget || got > e.Up { // a reset takes what is on its way
			t.Errorf("%+v: %d bytes arrived, %d are counted", row, got, e.Up)
		}
	}
	c := begun(t, newSet(t), "tcp", forever)
	c.Down()
	c.Up([]byte("0123456789"))
	c.Limit(9)
	if e := c.ended(t, OverBudget); e.Up != 10 {
		t.Errorf("it counted %d", e.Up)
	}
}

// TestTheOwnerCountsWhatGoesUp before it goes, also what is spliced.
func TestTheOwnerCountsWhatGoesUp(t *testing.T) {
	for _, piece := range []int{1000, 100 << 10} {
		c := begun(t, newSet(t), "tcp", forever)
		c.most = 3<<20 + 5
		c.Down()
		arrived := make(chan int64)
		go func() {
			n, _ := io.Copy(io.Discard, c.upstream)
			arrived <- n
		}()
		c.Up(make([]byte, 7))
		for b := make([]byte, piece); ; {
			if _, err := c.client.Write(b); err != nil {
				break
			}
		}
		e := c.ended(t, OverBudget)
		if got := <-arrived; e.Up > c.most || e.Up < 1<<20 || got > e.Up {
			t.Errorf("pieces of %d: %d bytes arrived, %d are counted", piece, got, e.Up)
		}
	}
}

// TestACutIsSeenAtOnce by both sides, as a reset, whatever they do.
func TestACutIsSeenAtOnce(t *testing.T) {
	for says, busy := range map[string]bool{"idle": false, "busy": true} {
		c := begun(t, newSet(t), "tcp", forever)
		c.Down()
		c.Up(nil)
		if busy {
			go func() {
				for b := make([]byte, 1<<20); ; {
					if _, err := c.upstream.Write(b); err != nil {
						return
					}
				}
			}()
			io.ReadFull(c.client, make([]byte, 4<<20)) // and no further
		}
		began := time.Now()
		c.End(record.OutcomeCut)
		c.ended(t, record.OutcomeCut)
		if _, err := io.Copy(io.Discard, c.client); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: the client saw %v", says, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: it took %v", says, took)
		}
	}
}

// TestTimesEndATunnel: one in which nothing moves, one that is old whatever moves, and not one that a slow reader keeps.
func TestTimesEndATunnel(t *testing.T) {
	idle := begun(t, newSet(t), "tcp", Limits{Idle: time.Second, Life: time.Hour})
	idle.Down()
	idle.Up(nil)
	old := begun(t, newSet(t), "tcp", Limits{Idle: time.Hour, Life: time.Second})
	old.Down()
	old.Up(nil)
	slow := begun(t, newSet(t), "tcp", Limits{Idle: 1500 * time.Millisecond, Life: time.Hour})
	slow.Down()
	slow.Up(nil)
	go slow.upstream.Write(make([]byte, 64<<20))
	go func() {
		for range 30 { // little at a time, for three seconds
			io.ReadFull(slow.client, make([]byte, 300<<10))
			time.Sleep(100 * time.Millisecond)
		}
		slow.client.Close()
	}()
	idle.ended(t, record.OutcomeIdle)
	old.ended(t, record.OutcomeLifetime)
	slow.ended(t, record.OutcomeReset)
}

// TestTakeGivesBackWhatNobodyUsed, unless the upstream has spoken.
func TestTakeGivesBackWhatNobodyUsed(t *testing.T) {
	for _, listening := range []bool{false, true} {
		c := begun(t, newSet(t), "tcp", forever)
		client, upstream := c.Tunnel.client.conn, c.Tunnel.upstream.conn
		if listening {
			c.Down()
		}
		if !c.Take() {
			t.Fatal("it was not given back")
		}
		io.WriteString(c.upstream, "later")
		io.WriteString(c.client, "hello")
		b := make([]byte, 5)
		if _, err := io.ReadFull(upstream, b); err != nil || string(b) != "later" {
			t.Errorf("the upstream said %q, %v", b, err)
		}
		if _, err := io.ReadFull(client, b); err != nil || string(b) != "hello" {
			t.Errorf("the client said %q, %v", b, err)
		}
		client.Close()
		upstream.Close()
	}
	c := begun(t, newSet(t), "tcp", forever)
	c.Down()
	io.WriteString(c.upstream, "220 ready")
	if _, err := io.ReadFull(c.client, make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	if c.Take() {
		t.Error("it was given back after the upstream spoke")
	}
	c.Leave(record.OutcomeCut)
	c.ended(t, record.OutcomeCut)
}

// TestAnIdleTunnelHoldsNothing: neither a buffer nor a pipe, after many bytes have passed.
func TestAnIdleTunnelHoldsNothing(t *testing.T) {
	s := newSet(t)
	var all []*carried
	for range 2 * buffersKept {
		c := begun(t, s, "tcp", forever)
		c.Down()
		c.Up(nil)
		all = append(all, c)
	}
	for _, c := range all {
		go c.upstream.Write(make([]byte, 1<<20))
		if _, err := io.ReadFull(c.client, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		held := 0
		s.pipes.mu.Lock()
		held = s.pipes.out
		s.pipes.mu.Unlock()
		if held == 0 {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("%d pipes are held", held)
		}
	}
	s.buffers.mu.Lock()
	if n := len(s.buffers.free); n > buffersKept {
		t.Errorf("%d buffers are kept", n)
	}
	s.buffers.mu.Unlock()
	for _, c := range all {
		c.End(record.OutcomeCut)
		c.ended(t, record.OutcomeCut)
	}
}

// A watcher refuses what has a letter in it, and looks until it has seen enough.
type watcher struct {
	mu     sync.Mutex
	seen   bytes.Buffer
	enough int
}

func (w *watcher) Watch(_ bool, b []byte) (over, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Write(b)
	return w.seen.Len() >= w.enough, !bytes.ContainsRune(b, 'x')
}

// TestAWatcherSeesAllUntilItHasEnough, both ways, and what it refuses does not arrive.
func TestAWatcherSeesAllUntilItHasEnough(t *testing.T) {
	c := begun(t, newSet(t), "tcp", forever)
	w := &watcher{enough: 6}
	c.Watch(w)
	c.Down()
	c.Up(nil)
	say := func(from, to net.Conn, s string) {
		t.Helper()
		io.WriteString(from, s)
		b := make([]byte, len(s))
		if _, err := io.ReadFull(to, b); err != nil || string(b) != s {
			t.Fatalf("read %q, %v", b, err)
		}
	}
	say(c.client, c.upstream, "abc")
	say(c.upstream, c.client, "def")
	say(c.client, c.upstream, "xxx") // nobody looks any more
	if got := w.seen.String(); got != "abcdef" {
		t.Errorf("it saw %q", got)
	}
	c.End(record.OutcomeCut)
	c.ended(t, record.OutcomeCut)
	c = begun(t, newSet(t), "tcp", forever)
	c.Watch(&watcher{enough: 100})
	c.Down()
	c.Up(nil)
	io.WriteString(c.client, "abx")
	if e := c.ended(t, Refused); e.Up != 0 {
		t.Errorf("%d bytes went up", e.Up)
	}
}

// TestAnEndInOrderIsNoReset: once both sides have ended and the tunnel has passed that on, their connections look as if they were reset,
// for the moment until the last goroutine leaves.
func TestAnEndInOrderIsNoReset(t *testing.T) {
	c := begun(t, newSet(t), "tcp", forever)
	defer c.Leave(record.OutcomeCut)
	near := c.Tunnel.client.conn.(*net.TCPConn)
	if err := errors.Join(c.client.(*net.TCPConn).CloseWrite(), near.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); !c.Tunnel.client.gone() && time.Since(begin) < 10*time.Second; {
		time.Sleep(time.Millisecond)
	}
	c.mu.Lock()
	c.Tunnel.client.ended = true
	c.mu.Unlock()
	if got := c.overdue(time.Now()); got != record.OutcomeReset {
		t.Errorf("a client that is gone while the upstream goes on ends it by %q", got)
	}
	c.mu.Lock()
	c.Tunnel.upstream.ended = true
	c.mu.Unlock()
	if got := c.overdue(time.Now()); got != "" {
		t.Errorf("both have ended, which ends it by %q", got)
	}
}
