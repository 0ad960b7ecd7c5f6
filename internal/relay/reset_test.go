package relay

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
)

// TestHowTheUpstreamSeesTheEnd has tunnels end in several ways. An upstream that was told
// nothing, or whose client broke off, sees a reset: no port waits for it then.
func TestHowTheUpstreamSeesTheEnd(t *testing.T) {
	for _, row := range []struct {
		name  string
		judge func([]byte) (Judgement, []byte)
		end   func(t *testing.T, w *world)
		reset bool
	}{
		{"the client breaks off", pass, func(t *testing.T, w *world) { w.say(t); w.abort(t) }, true},
		{"the client leaves before it was judged", more, func(t *testing.T, w *world) { w.client.Write([]byte("x")); w.client.Close() }, true},
		{"what the client says is refused", refuse, func(t *testing.T, w *world) { w.client.Write([]byte("x")) }, true},
		{"the client comes to its end", pass, func(t *testing.T, w *world) { w.say(t); w.client.Close() }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, row.judge, generous).start()
			row.end(t, w)
			_, err := io.Copy(io.Discard, w.upstream)
			if reset := errors.Is(err, syscall.ECONNRESET); reset != row.reset {
				t.Errorf("the upstream saw %v", err)
			}
			w.upstream.Close()
			<-w.keeper.ended
		})
	}
}

func more([]byte) (Judgement, []byte) { return More, nil }

func refuse([]byte) (Judgement, []byte) { return Refuse, nil }

// say has one byte arrive at the upstream.
func (w *world) say(t *testing.T) {
	t.Helper()
	if _, err := w.client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.upstream.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func (w *world) abort(t *testing.T) {
	t.Helper()
	if err := w.client.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	w.client.Close()
}
