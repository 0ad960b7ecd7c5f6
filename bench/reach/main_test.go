//go:build linux

package main

import (
	"context"
	"maps"
	"net"
	"slices"
	"testing"
)

// TestOnlyTheCoreBeyondIdleCounts compares two runs.
func TestOnlyTheCoreBeyondIdleCounts(t *testing.T) {
	idle := covered{module + "egress/gate.go:1.2,3.4": true, module + "daemon/serve.go:1.1,2.2": true}
	ran := covered{
		module + "egress/gate.go:1.2,3.4": true, module + "daemon/serve.go:1.1,2.2": true, // as when idle
		module + "egress/gate.go:5.6,7.8": true, module + "egress/gate.go:9.1,9.9": true, module + "dns/wire.go:1.1,2.2": true,
		module + "logs/scan.go:1.1,2.2": true, module + "cmd/egressd/main.go:1.1,2.2": true,
	}
	reached := ran.beyond(idle)
	if got, want := slices.Sorted(maps.Keys(reached)), []string{"dns/wire.go", "egress/gate.go"}; !slices.Equal(got, want) {
		t.Errorf("reached are %q, want %q", got, want)
	}
	if got, want := linesOf(reached["egress/gate.go"]), []int{5, 9}; !slices.Equal(got, want) {
		t.Errorf("what ran begins at %v, want %v", got, want)
	}
}

// TestTheZoneKnowsEveryName asks for both families.
func TestTheZoneKnowsEveryName(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go serveNames(c)
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
	if got, err := r.LookupHost(t.Context(), "a.example.com."); err != nil || !slices.Equal(got, []string{"127.0.0.1"}) {
		t.Errorf("%q, %v", got, err)
	}
}
