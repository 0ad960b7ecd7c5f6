package egress

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/egressd/egressd/internal/relay"
	"github.com/egressd/egressd/policy"
)

// silence returns a port at which no address of loopback answers: as many wait there as may.
func silence(t *testing.T) uint16 {
	t.Helper()
	l, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(l) })
	if err := syscall.Bind(l, &syscall.SockaddrInet4{}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(l, 0); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(l)
	if err != nil {
		t.Fatal(err)
	}
	port := at.(*syscall.SockaddrInet4).Port
	for range 2 {
		c, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(c) })
		if err := syscall.Connect(c, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != syscall.EINPROGRESS {
			t.Fatal(err)
		}
	}
	return uint16(port)
}

// TestFewAddressesAreTriedAtATime has a name of twelve addresses that answer nothing.
func TestFewAddressesAreTriedAtATime(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	var all []netip.AddrPort
	for i, port := byte(1), silence(t); i <= 12; i++ {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, i}), port))
	}
	f.request.Destination = policy.Destination{Host: "dead.test", Port: all[0].Port()}
	for _, a := range all {
		f.request.Destination.Addrs = append(f.request.Destination.Addrs, a.Addr())
	}
	loop, err := relay.NewLoop()
	if err != nil {
		t.Fatal(err)
	}
	seen, done := map[int]bool{}, make(chan struct{})
	loop.Post(func() {
		defer close(done)
		c := &connecting{flow: f, loop: loop, to: all}
		for len(c.to) > 0 {
			c.next()
			for _, a := range c.open {
				seen[a.fd] = true
			}
			if len(c.open) > attemptsMost {
				t.Errorf("%d addresses are tried at a time", len(c.open))
			}
		}
		if c.over || len(c.open) == 0 {
			t.Error("nothing is tried any more")
		}
		c.clear(nil)
		loop.Close()
	})
	if err := loop.Run(); err != nil {
		t.Error(err)
	}
	<-done
	if len(seen) > attemptsMost+1 { // the one that is new is there before the oldest goes
		t.Errorf("%d descriptors were open", len(seen))
	}
}
