package relay

import (
	"bytes"
	"testing"
	"time"
)

// held begins a tunnel whose keeper says Hold to the client's first bytes, and returns what
// makes it say something else to them.
func held(t *testing.T, limits Limits) (w *world, decide func(Judgement)) {
	t.Helper()
	said, asked := Hold, make(chan struct{}, 8)
	w = newWorld(t, func([]byte) (Judgement, []byte) {
		asked <- struct{}{}
		return said, []byte("bye")
	}, limits)
	w.start()
	send(t, w.client, "hello")
	<-asked
	return w, func(j Judgement) {
		w.loop.Post(func() {
			said = j
			w.tunnel.Again()
		})
	}
}

// TestWhatIsHeldWaits has the client send more while its first bytes are held: that stays in
// the kernel, and the upstream speaks meanwhile.
func TestWhatIsHeldWaits(t *testing.T) {
	w, decide := held(t, generous)
	behind := bytes.Repeat([]byte("0123456789abcdef"), 16<<10) // more than first bytes may be
	sent := make(chan error, 1)
	go func() {
		_, err := w.client.Write(behind)
		sent <- err
	}()
	send(t, w.upstream, "banner")
	expect(t, w.client, "banner")
	decide(Pass)
	expect(t, w.upstream, "hello"+string(behind))
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	w.client.Close()
	w.upstream.Close()
	w.end(t)
	if n := len(w.keeper.seen); n != 2 || string(w.keeper.seen[1]) != "hello" {
		t.Errorf("the keeper was asked %d times, last about %d bytes", n, len(w.keeper.seen[n-1]))
	}
}

// TestWhatIsHeldCanBeRefused and goes nowhere then.
func TestWhatIsHeldCanBeRefused(t *testing.T) {
	w, decide := held(t, generous)
	decide(Refuse)
	expect(t, w.client, "bye")
	if e := w.end(t); e.Why != Refused || e.Up != 0 {
		t.Errorf("ended %+v", e)
	}
}

// TestNobodyHoldsForever ends a tunnel whose keeper never decides.
func TestNobodyHoldsForever(t *testing.T) {
	limits := generous
	limits.First = 50 * time.Millisecond
	w, decide := held(t, limits)
	if e := w.end(t); e.Why != FirstLate {
		t.Errorf("ended %+v", e)
	}
	decide(Pass) // too late to do anything
}

// TestAClientThatBreaksOffIsSeenWhileItsBytesAreHeld although nobody reads from it.
func TestAClientThatBreaksOffIsSeenWhileItsBytesAreHeld(t *testing.T) {
	w, _ := held(t, generous)
	w.client.(interface{ SetLinger(int) error }).SetLinger(0)
	w.client.Close()
	if e := w.end(t); e.Why != FirstEnded || e.Up != 0 {
		t.Errorf("ended %+v", e)
	}
}

// TestAFollowerMayHold what it follows, which is first bytes again then.
func TestAFollowerMayHold(t *testing.T) {
	asked := make(chan struct{}, 8)
	w, f := follow(t, func(bool, []byte) Judgement {
		asked <- struct{}{}
		return Hold
	})
	expect(t, w.upstream, "first")
	send(t, w.client, "second")
	<-asked
	w.loop.Post(func() {
		f.judge = pass
		w.tunnel.Again()
	})
	send(t, w.client, " third")
	expect(t, w.upstream, "second third")
	w.client.Close()
	w.upstream.Close()
	w.end(t)
}
