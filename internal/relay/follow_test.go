package relay

import (
	"bytes"
	"io"
	"testing"
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
