package relay

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// drain counts what reaches the far end of the upstream until it ends.
func drain(c net.Conn) <-chan int64 {
	got := make(chan int64, 1)
	go func() {
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	return got
}

// TestNoByteBeyondTheBudgetGoesUp writes more than may go, in pieces that keep the
// tunnel with the buffer and in such that have it splice.
func TestNoByteBeyondTheBudgetGoesUp(t *testing.T) {
	for _, budget := range []int64{1, 1000, bufferSize, bufferSize + 1, 3<<20 + 7, pipeSize + bufferSize} {
		for _, piece := range []int{1000, 1 << 20} {
			limits := generous
			limits.Up = budget
			w := newWorld(t, pass, limits).start()
			send(t, w.client, "x") // so that it is more than first bytes
			expect(t, w.upstream, "x")
			got := drain(w.upstream)
			for block := make([]byte, piece); ; {
				if _, err := w.client.Write(block); err != nil {
					break
				}
			}
			e, n := w.end(t), 1+<-got
			if e.Why != OverBudget || e.Up > budget || n > budget {
				t.Errorf("budget %d, pieces of %d: %d bytes arrived, ended as %+v", budget, piece, n, e)
			}
			if e.Up < min(budget, 1) {
				t.Errorf("budget %d: only %d went", budget, e.Up)
			}
		}
	}
}

func TestTheBudgetItselfGoesUp(t *testing.T) {
	const budget = 2<<20 + 13
	limits := generous
	limits.Up = budget
	w := newWorld(t, pass, limits).start()
	got := drain(w.upstream)
	if _, err := w.client.Write(make([]byte, budget)); err != nil {
		t.Fatal(err)
	}
	send(t, w.upstream, "the other way is free")
	expect(t, w.client, "the other way is free")
	w.client.(*net.TCPConn).CloseWrite()
	if n := <-got; n != budget {
		t.Errorf("%d bytes arrived, want %d", n, budget)
	}
	w.upstream.Close()
	w.client.Close()
	if e := w.end(t); e.Why != Closed || e.Up != budget {
		t.Errorf("ended as %+v", e)
	}
}

func TestFirstBytesBeyondTheBudgetStay(t *testing.T) {
	limits := generous
	limits.Up = 5
	w := newWorld(t, pass, limits).start()
	got := drain(w.upstream)
	send(t, w.client, "sixsix")
	if e, n := w.end(t), <-got; e.Why != OverBudget || e.Up != 0 || n != 0 {
		t.Errorf("%d bytes arrived, ended as %+v", n, e)
	}
}

func (w *world) limit(up int64) {
	done := make(chan struct{})
	w.loop.Post(func() { w.tunnel.Limit(up); close(done) })
	<-done
}

func TestABudgetMayChange(t *testing.T) {
	w := newWorld(t, pass, generous).start()
	send(t, w.client, "hello")
	expect(t, w.upstream, "hello")
	w.limit(8)
	send(t, w.client, "you")
	expect(t, w.upstream, "you")
	w.limit(10)
	send(t, w.client, "!!")
	expect(t, w.upstream, "!!")
	w.limit(0)
	send(t, w.client, "any number")
	expect(t, w.upstream, "any number")
	w.limit(19)
	if e := w.end(t); e.Why != OverBudget || e.Up != 20 {
		t.Errorf("ended as %+v", e)
	}
}

func TestAKeeperMayLimitWhatItPasses(t *testing.T) {
	tunnel := make(chan *Tunnel, 1)
	w := newWorld(t, func([]byte) (Judgement, []byte) {
		(<-tunnel).Limit(3)
		return Pass, nil
	}, generous)
	tunnel <- &w.tunnel
	w.start()
	send(t, w.client, "abc")
	expect(t, w.upstream, "abc")
	got := drain(w.upstream)
	send(t, w.client, "d")
	if e, n := w.end(t), <-got; e.Why != OverBudget || e.Up != 3 || n != 0 {
		t.Errorf("%d more arrived, ended as %+v", n, e)
	}
}

// TestAMeterCountsAllTunnels counts while they are open, by the buffer and by splice.
func TestAMeterCountsAllTunnels(t *testing.T) {
	limits := generous
	limits.Meter = new(Meter)
	for range 2 {
		w := newWorld(t, pass, limits).start()
		down := bytes.Repeat([]byte("d"), 5)
		go w.client.Write(make([]byte, 3<<20))
		if _, err := io.ReadFull(w.upstream, make([]byte, 3<<20)); err != nil {
			t.Fatal(err)
		}
		w.upstream.Write(down)
		expect(t, w.client, string(down))
		w.limit(0) // what was moved is counted once the loop has come back
	}
	if up, down := limits.Meter.Up.Load(), limits.Meter.Down.Load(); up != 6<<20 || down != 10 {
		t.Errorf("counted %d up and %d down", up, down)
	}
}

// TestTooMuchInOnePieceIsSeen: what is left in the kernel brings no event of its own.
func TestTooMuchInOnePieceIsSeen(t *testing.T) {
	limits := generous
	limits.Up = 10
	w := newWorld(t, pass, limits).start()
	send(t, w.client, "hello")
	expect(t, w.upstream, "hello")
	w.limit(10) // the loop has found the client empty by now
	got := drain(w.upstream)
	send(t, w.client, "twenty bytes at once")
	if e, n := w.end(t), <-got; e.Why != OverBudget || e.Up > 10 || n > 5 {
		t.Errorf("%d more arrived, ended as %+v", n, e)
	}
}
