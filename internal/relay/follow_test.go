package relay

import (
	"bytes"
	"io"
	"testing"
	"time"
)

// A follower says of what passes what says does.
type follower struct {
	*keeper
	says     func(up bool, next []byte) Judgement
	up, down int64
}

func (f *follower) Follow(up bool, next []byte) (Judgement, []byte) {
	if up {
		f.up += int64(len(next))
	} else {
		f.down += int64(len(next))
	}
	return f.says(up, next), []byte("bye")
}

// follow begins a tunnel that is followed from its first bytes on.
func follow(t *testing.T, says func(up bool, next []byte) Judgement) (*world, *follower) {
	t.Helper()
	w := &world{loop: newLoop(t)}
	f := &follower{keeper: &keeper{judge: func([]byte) (Judgement, []byte) { return Follow, nil }, ended: make(chan End, 1)}, says: says}
	client, near := tcpPair(t)
	upstream, far := tcpPair(t)
	w.client, w.upstream, w.keeper = client, upstream, f.keeper
	w.loop.Post(func() {
		w.loop.Carry(&w.tunnel, near, far, []byte("first"), f, &generous)
		w.tunnel.Start()
	})
	return w, f
}

// TestAFollowerSeesAllUntilItHasSeenEnough, also of streams that are busy.
func TestAFollowerSeesAllUntilItHasSeenEnough(t *testing.T) {
	const much, enough = 8 << 20, 4 << 20
	var seen int64
	w, f := follow(t, func(_ bool, next []byte) Judgement {
		if seen += int64(len(next)); seen >= enough {
			return Pass
		}
		return Follow
	})
	sent := bytes.Repeat([]byte("0123456789abcdef"), much/16)
	go func() {
		w.client.Write(sent)
		w.client.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(w.upstream)
	if err != nil || !bytes.Equal(got, append([]byte("first"), sent...)) {
		t.Errorf("%d bytes of %d came through, %v", len(got), len(sent), err)
	}
	w.upstream.Close()
	w.client.Close()
	if e := w.end(t); e.Up != int64(len(got)) || f.up < enough || f.up > enough+bufferSize || f.down != 0 {
		t.Errorf("ended %+v, seen %d up and %d down", e, f.up, f.down)
	}
}

// TestWhatAFollowerRefusesGoesNowhere, whichever way it was going.
func TestWhatAFollowerRefusesGoesNowhere(t *testing.T) {
	for _, way := range []string{"up", "down"} {
		t.Run(way, func(t *testing.T) {
			w, _ := follow(t, func(_ bool, next []byte) Judgement {
				if bytes.Contains(next, []byte("evil")) {
					return Refuse
				}
				return Follow
			})
			read := make([]byte, 5)
			if _, err := io.ReadFull(w.upstream, read); err != nil || string(read) != "first" {
				t.Fatalf("the upstream got %q, %v", read, err)
			}
			from, to := w.client, w.upstream
			if way == "down" {
				from, to = to, from
			}
			io.WriteString(from, "good!")
			if _, err := io.ReadFull(to, read); err != nil || string(read) != "good!" {
				t.Fatalf("the other end got %q, %v", read, err)
			}
			io.WriteString(from, "evil!")
			if e := w.end(t); e.Why != Refused {
				t.Errorf("ended %+v", e)
			}
			if rest, _ := io.ReadAll(w.upstream); len(rest) > 0 {
				t.Errorf("the upstream got %q", rest)
			}
			if rest, _ := io.ReadAll(w.client); string(rest) != "bye" {
				t.Errorf("the client got %q", rest)
			}
		})
	}
}

// TestAFollowerHasBytesHeldAgain, and First judges those that are, and what comes behind them, in the
// time that first bytes have.
func TestAFollowerHasBytesHeldAgain(t *testing.T) {
	w, f := follow(t, func(_ bool, next []byte) Judgement {
		if string(next) == "a" {
			return Follow
		}
		return More
	})
	read := make([]byte, 10)
	io.WriteString(w.client, "a")
	if _, err := io.ReadFull(w.upstream, read[:6]); err != nil {
		t.Fatal(err)
	}
	held := make(chan string, 9)
	w.loop.Post(func() {
		f.keeper.judge = func(first []byte) (Judgement, []byte) {
			held <- string(first)
			if string(first) == "bc" {
				return Pass, nil
			}
			return More, nil
		}
	})
	w.later(generous.First - generous.First/4)
	io.WriteString(w.client, "b")
	if got := <-held; got != "b" {
		t.Fatalf("judged %q", got)
	}
	if w.later(generous.First / 2) {
		t.Fatal("over in less than the time for first bytes")
	}
	io.WriteString(w.upstream, "down")
	if _, err := io.ReadFull(w.client, read[:4]); err != nil {
		t.Fatal(err)
	}
	io.WriteString(w.client, "c")
	if got := <-held; got != "bc" {
		t.Fatalf("judged %q", got)
	}
	io.WriteString(w.client, "d")
	if _, err := io.ReadFull(w.upstream, read[:3]); err != nil || string(read[:3]) != "bcd" {
		t.Errorf("the upstream got %q, %v", read[:3], err)
	}
}

// later looks at the tunnel as if d had passed, and reports whether it is over.
func (w *world) later(d time.Duration) (over bool) {
	looked := make(chan bool)
	w.loop.Post(func() {
		w.loop.began = w.loop.began.Add(-d)
		w.loop.instant += instant(d / time.Millisecond)
		w.tunnel.checkTime()
		looked <- w.tunnel.over
	})
	return <-looked
}

// TestWhatIsAwaitedHasToComeInTime, counted from when it was awaited first.
func TestWhatIsAwaitedHasToComeInTime(t *testing.T) {
	for says, row := range map[string]struct {
		then Judgement // of a byte that comes later
		late bool
	}{
		"more is awaited":  {Await, true},
		"more is followed": {Follow, true},
		"it came":          {Pass, false},
	} {
		t.Run(says, func(t *testing.T) {
			w, _ := follow(t, func(_ bool, next []byte) Judgement {
				if string(next) == "a" {
					return Await
				}
				return row.then
			})
			pass := func(b string) {
				io.WriteString(w.client, b)
				if _, err := io.ReadFull(w.upstream, make([]byte, len(b))); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.ReadFull(w.upstream, make([]byte, len("first"))); err != nil {
				t.Fatal(err)
			}
			pass("a")
			if w.later(generous.First / 2) {
				t.Fatal("over at half of the time")
			}
			pass("b")
			if over := w.later(generous.First - generous.First/4); over != row.late {
				t.Fatalf("over %v, when it should be %v", over, row.late)
			}
			if !row.late {
				return
			}
			if e := w.end(t); e.Why != FirstLate {
				t.Errorf("ended %+v", e)
			}
		})
	}
}
