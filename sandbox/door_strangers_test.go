package sandbox

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
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
	d := &Door{
		Name: "unix:" + path, Take: func(*Arrival) {},
		Refused: func(_ Visitor, _ []byte, why error) {
			if why == ErrUnknown {
				recorded.Add(1)
			}
		},
		Enters: func(Visitor) (string, error) {
			if seen.Add(1) <= strangers {
				return "do something else", ErrUnknown
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
	h := &house{path: path}
	late, err := Knock(path)
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
	if _, err := late.Offer(Offer{}, nil); !errors.As(err, &refused) || refused.Hint != "do something else" {
		t.Errorf("a stranger who makes an offer late has %v", err)
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

func TestWhoMayEnterBeforeAnythingIsHandedIn(t *testing.T) {
	listed := []Entry{{Name: "own", Enter: "unix:/own"}, {Name: "user", UIDs: []uint32{7}}, {Name: "both", Enter: "unix:/both", UIDs: []uint32{8}}}
	held := append([]Entry{{Name: "held", Docker: policy.Containers{Name: "x"}}}, listed...)
	for _, row := range []struct {
		says   string
		listed []Entry
		who    Visitor
		may    bool
	}{
		{"a user of a sandbox", listed, Visitor{Door: "unix:/all", UID: 7}, true},
		{"a user of none", listed, Visitor{Door: "unix:/all", UID: 9}, false},
		{"anybody at a socket of its own", listed, Visitor{Door: "unix:/own", UID: 9}, true},
		{"the user at a socket that needs one", listed, Visitor{Door: "unix:/both", UID: 8}, true},
		{"another user there", listed, Visitor{Door: "unix:/both", UID: 7}, false},
		{"the host's own, who has to say its name first", listed, Visitor{Door: "unix:/all", Host: true}, true},
		{"a user of none, who may be in a container that is one", held, Visitor{Door: "unix:/all", UID: 9}, true},
		{"anybody where nobody is listed", nil, Visitor{Door: "unix:/all", UID: 9}, true},
	} {
		d, err := NewDirectory(row.listed)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.MayEnter(row.who); (err == nil) != row.may {
			t.Errorf("%s: %v", row.says, err)
		}
	}
}
