//go:build linux

package attach

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/sandbox"
)

// TestStrangersDoNotWait has many who can be no sandbox come and say nothing, and behind
// them one who can.
func TestStrangersDoNotWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "enter.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	const strangers = 2*waitingOfOne + 1
	var seen, recorded atomic.Int32
	d := &Server{
		Name: "unix:" + path, Handle: func(*Conn) {},
		Refused: func(_ sandbox.Attacher, _ []byte, why error) {
			if why == sandbox.ErrUnknown {
				recorded.Add(1)
			}
		},
		Forbids: func(sandbox.Attacher) (string, error) {
			if seen.Add(1) <= strangers {
				return "do something else", sandbox.ErrUnknown
			}
			return "", nil
		},
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		d.Serve(l)
	}()
	t.Cleanup(func() {
		d.Close()
		<-served
	})
	h := &world{path: path}
	late, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // a signal of the runtime ends a poll(2)
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(late.conn), Events: unix.POLLRDHUP}}, 20_000)
	}
	if err != nil {
		t.Fatal(err)
	}
	var refused *RefusedError
	if _, err := late.attach(Request{}, nil); !errors.As(err, &refused) || refused.Hint != "do something else" {
		t.Errorf("a stranger who makes a request late has %v", err)
	}
	for range strangers - 1 {
		k := knock(t, h)
		text, err := receiveAnswer(k.conn)
		if err != nil || !strings.Contains(string(text), "do something else") {
			t.Errorf("a stranger is told %q, %v", text, err)
		}
	}
	k := knock(t, h)
	_ = unix.Sendto(k.conn, []byte("{}"), unix.MSG_NOSIGNAL, nil)
	if text, err := receiveAnswer(k.conn); err != nil {
		t.Errorf("who is none has no answer: %q, %v", text, err)
	}
	if got := recorded.Load(); got != strangers {
		t.Errorf("%d of %d strangers are recorded", got, strangers)
	}
}
