package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// TestALookupThatIsLeftBeforeItIsSentEndsOnce: nothing can be sent to an upstream with
// a zone from where most lookups are sent, and whoever waits may leave meanwhile.
func TestALookupThatIsLeftBeforeItIsSentEndsOnce(t *testing.T) {
	f := &Forwarder{Upstreams: []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%lo]:53")}, TotalTimeout: time.Second}
	var all sync.WaitGroup
	for i := range 2000 {
		ctx, leave := context.WithCancel(t.Context())
		all.Go(func() { _, _, _ = f.Lookup(ctx, fmt.Sprintf("n%d.test", i)) })
		all.Go(leave)
		if i%100 == 99 {
			all.Wait()
		}
	}
	all.Wait()
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		n := f.inFlight
		f.mu.Unlock()
		if n == 0 {
			return
		}
		if n < 0 || time.Now().After(late) {
			t.Fatalf("%d lookups are under way", n)
		}
	}
}

// TestAnUpstreamThatIsNotThereIsNotWaitedFor: that nobody has its port is heard at once.
func TestAnUpstreamThatIsNotThereIsNotWaitedFor(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	c.Close()
	f := &Forwarder{Upstreams: []netip.AddrPort{at}, Timeout: time.Minute, TotalTimeout: time.Minute}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i := range 5 {
		_, _, err := f.Lookup(soon, fmt.Sprintf("n%d.test", i))
		if failed := (*Error)(nil); !errors.As(err, &failed) || failed.Kind != ServerFailure {
			t.Errorf("lookup %d: %v", i, err)
		}
	}
}
