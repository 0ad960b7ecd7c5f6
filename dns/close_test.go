package dns

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestCloseEndsLookupsAndWaitsForTheirSockets(t *testing.T) {
	asks := make(chan string, 100)
	first := startUpstream(t, func(*asked) { asks <- "first" })
	second := startUpstream(t, func(*asked) { asks <- "second" })
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for during, f := range map[string]*Forwarder{
		"first":  {Upstreams: []netip.AddrPort{first.addr}, Timeout: time.Minute, TotalTimeout: time.Minute},
		"second": {Upstreams: []netip.AddrPort{first.addr, second.addr}, Timeout: 50 * time.Millisecond, TotalTimeout: time.Minute},
	} {
		began, ended := time.Now(), make(chan error, 1)
		go func() {
			_, _, err := f.Lookup(context.Background(), "a.test")
			ended <- err
		}()
		for <-asks != during {
		}
		f.Close()
		if err := <-ended; !errors.As(err, new(*Error)) {
			t.Errorf("%s upstream: the lookup ended with %v", during, err)
		}
		if took := time.Since(began); !f.Idle() || took > 30*time.Second {
			t.Errorf("%s upstream: idle %v after %v", during, f.Idle(), took)
		}
		if _, _, err := f.Lookup(context.Background(), "b.test"); err == nil {
			t.Errorf("%s upstream: a lookup began after Close", during)
		}
	}
}
