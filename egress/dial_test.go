package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"
)

// TestFewAddressesAreTriedAtATime has a name of twelve addresses that answer nothing.
func TestFewAddressesAreTriedAtATime(t *testing.T) {
	f := openedFlow(t)
	var all []netip.AddrPort
	for i := byte(1); i <= 12; i++ {
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, i}), 1))
	}
	synctest.Test(t, func(t *testing.T) {
		var tried, open, most atomic.Int32
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := race(ctx, &f.gate.tasks, all, func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			tried.Add(1)
			most.Store(max(most.Load(), open.Add(1)))
			defer open.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if tried.Load() != 12 || most.Load() > attemptsMost+1 { // the new one begins before the oldest is given up
			t.Errorf("%d addresses were tried, %d at a time", tried.Load(), most.Load())
		}
	})
}

// TestADialReachesTheAddressThatAnswers opens flows to a name with one address at which nothing listens, and to one with
// another address where something does.
func TestADialReachesTheAddressThatAnswers(t *testing.T) {
	port := origin(t)
	for says, row := range map[string]struct {
		addrs []string
		want  policy.Class // "": it connects
	}{
		"one address":           {[]string{"127.0.0.1"}, ""},
		"the second of two":     {[]string{"127.0.0.9", "127.0.0.1"}, ""},
		"one where nothing is":  {[]string{"127.0.0.9"}, policy.NetworkRefused},
		"two where nothing is":  {[]string{"127.0.0.9", "127.0.0.8"}, policy.NetworkRefused},
		"none is not connected": {nil, policy.NetworkUnreachable},
	} {
		f := openedFlow(t)
		to := policy.Destination{Host: "two.test", Port: netip.MustParseAddrPort("127.0.0.1:" + port).Port()}
		for _, a := range row.addrs {
			to.Addrs = append(to.Addrs, netip.MustParseAddr(a))
		}
		f.request.Destination = to
		_, err := f.Dial(t.Context())
		var refusal *Refusal
		if row.want == "" && err != nil || row.want != "" && (!errors.As(err, &refusal) || refusal.Decision.Class != row.want) {
			t.Errorf("%s: %v", says, err)
		}
		if at := f.dialled; row.want == "" && at != netip.MustParseAddrPort("127.0.0.1:"+port) {
			t.Errorf("%s: connected to %v", says, at)
		}
	}
}

func openedFlow(t *testing.T) *Flow {
	t.Helper()
	w := newWorld(t, policy.New(opinion(allow)))
	f, err := w.Open(t.Context(), peer, ask(t, "127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(End{}) })
	return f
}

// TestTheGateDialsWhatItFoundItself, whatever addresses a way in names beside a name.
func TestTheGateDialsWhatItFoundItself(t *testing.T) {
	w := newWorld(t, policy.New(opinion(allow)))
	asked := 0
	w.Gate.config.Resolver = resolverFunc(func(string) ([]netip.Addr, error) {
		asked++
		return somewhere, nil
	})
	r := policy.Request{Via: policy.ViaConnect, Destination: policy.Destination{Host: "a.test", Port: 443, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	f, err := w.Open(t.Context(), peer, r)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(End{})
	if got := f.decided(); asked != 1 || len(got) != 1 || got[0].Addr() != somewhere[0] {
		t.Errorf("asked %d times, %v would be dialled", asked, got)
	}
}
