//go:build linux

package proxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// TestWhatGoesToTheHostIsDecidedByAddress captures connections to the host's own
// address, in which an allowed name is claimed.
func TestWhatGoesToTheHostIsDecidedByAddress(t *testing.T) {
	own := netip.MustParseAddr("192.0.2.1")
	for _, to := range []string{"192.0.2.1:443", "192.0.2.1:8443", "0.0.0.0:443"} {
		w := newWorld(t, openPolicy, func(s *Server) { s.Host = func() []netip.Addr { return []netip.Addr{own} } })
		at := netip.MustParseAddrPort(to)
		if got := w.captured(t, at).send(hello(t, "base-allowed")).rest(); got != string(accessDenied) {
			t.Errorf("%s: read %q", to, got)
		}
		if r := w.opened(t, at.Addr().String()); r.Decision.Class != string(policy.AddressDenied) {
			t.Errorf("%s: recorded %+v", to, r.Decision)
		}
	}
}

// TestAListenerEverywhereIsAtEachAddress captures connections that were made to a
// listener on all addresses, by one that the host has.
func TestAListenerEverywhereIsAtEachAddress(t *testing.T) {
	own := netip.MustParseAddr("192.0.2.1")
	w := newWorld(t, "version: 1\ndefault: allow\nunsafe_allow: [\"192.0.2.1:*\"]\n", func(s *Server) { s.Host = func() []netip.Addr { return []netip.Addr{own} } })
	in := &listener{server: w.Server, at: netip.MustParseAddrPort("0.0.0.0:3129")}
	for to, want := range map[string]bool{"192.0.2.1:3129": true, "192.0.2.1:3130": false, "192.0.2.2:3129": false, "0.0.0.0:3129": true} {
		if got := in.is(netip.MustParseAddrPort(to)); got != want {
			t.Errorf("%s is the listener: %v, want %v", to, got, want)
		}
	}
}

// TestAConnectionOfWhichNothingIsKnownIsRefused has the kernel not tell where a
// connection was going.
func TestAConnectionOfWhichNothingIsKnownIsRefused(t *testing.T) {
	w := newWorld(t, "version: 1\ndefault: allow\n", nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go w.ServeTransparent(l, "captured", func(int) (netip.AddrPort, error) { return netip.AddrPort{}, errors.New("no entry") })
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil { // the reset may be faster
		defer c.Close()
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("read %q", got)
		}
	}
	w.recorded(t, func(r record.Record) bool {
		return r.Via == "transparent" && r.Decision != nil && r.Decision.Reason == "the kernel does not tell where the connection was going"
	})
}
