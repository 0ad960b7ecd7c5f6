//go:build linux && !noepoll

package relay

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// crowd is more than a loop does in one round.
const crowd = 20 * callsAtOnce

// TestARoundIsBounded has a loop held while much comes due at once, and a byte arrives in a tunnel: the tunnel does
// not wait for all of it.
func TestARoundIsBounded(t *testing.T) {
	for says, due := range map[string]func(t *testing.T, l *Loop, hello, ran func()){
		"posted functions": func(_ *testing.T, l *Loop, hello, ran func()) {
			l.Post(hello)
			for range crowd {
				l.Post(ran)
			}
		},
		"timers": func(_ *testing.T, l *Loop, hello, ran func()) {
			l.After(0, hello)
			for range crowd {
				l.After(0, ran)
			}
		},
		"tunnels whose time is over": func(t *testing.T, l *Loop, hello, ran func()) {
			hello()
			over := generous
			over.Life = 0
			client, upstream := tcpPair(t)
			client.Close()
			for range crowd {
				k := &counting{ran: ran}
				l.Carry(&k.tunnel, dup(t, upstream), dup(t, upstream), nil, k, &over)
			}
			l.beginSweep()
		},
	} {
		t.Run(says, func(t *testing.T) {
			var ran, seen atomic.Int64
			w := newWorld(t, func([]byte) (Judgement, []byte) {
				seen.Store(ran.Load())
				return Pass, nil
			}, generous)
			w.start()
			all := make(chan struct{})
			w.loop.Post(func() {
				due(t, w.loop, func() { send(t, w.client, "hello") }, func() {
					if ran.Add(1) == crowd {
						close(all)
					}
				})
			})
			expect(t, w.upstream, "hello")
			<-all
			if n := seen.Load(); n > 2*callsAtOnce {
				t.Errorf("the tunnel waited for %d of %d", n, crowd)
			}
		})
	}
}

// counting is a keeper that counts its end.
type counting struct {
	tunnel Tunnel
	ran    func()
}

func (k *counting) First([]byte) (Judgement, []byte) { return More, nil }
func (k *counting) Ended(End)                        { k.ran() }

// TestWhatIsPostedWhileALoopIsBehindIsRun although nothing wakes the loop for it.
func TestWhatIsPostedWhileALoopIsBehindIsRun(t *testing.T) {
	l := newLoop(t)
	last := make(chan struct{})
	l.Post(func() {
		l.timers = nil // which would wake it
		for i := range crowd {
			l.Post(func() {
				if i == callsAtOnce/2 { // the rest is behind by then
					l.Post(func() { l.Post(func() { close(last) }) })
				}
			})
		}
	})
	select {
	case <-last:
	case <-time.After(20 * time.Second):
		t.Fatal("it was not run")
	}
}

// TestALoopThatClosesRunsWhatWasPostedBefore however much that is.
func TestALoopThatClosesRunsWhatWasPostedBefore(t *testing.T) {
	l, err := NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	l.Post(func() {
		for range crowd {
			l.Post(func() { ran++ })
		}
		l.Close()
		if l.Post(func() { ran++ }) {
			t.Error("a closed loop has taken something")
		}
	})
	for range crowd {
		l.Post(func() { ran++ })
	}
	if err := l.Run(); err != nil {
		t.Fatal(err)
	}
	if ran != 2*crowd {
		t.Errorf("%d of %d ran", ran, 2*crowd)
	}
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	other, err := syscall.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	return other
}
