package egress

import (
	"net/netip"
	"testing"

	"github.com/egressd/egressd/internal/fair"
	"github.com/egressd/egressd/policy"
)

func TestTheKernelsPortsAreCounted(t *testing.T) {
	if n := localPorts(); n != 0 && (n < 2 || n > 1<<15) {
		t.Errorf("%d connections may be begun in a minute", n)
	}
}

// TestPortsTowardsLoopbackAreNotCounted has a flow connect more often than there are ports.
func TestPortsTowardsLoopbackAreNotCounted(t *testing.T) {
	g := New(Config{})
	g.ports = fair.Recent{Most: 2}
	f := g.newFlow(peer, policy.Request{})
	connects := func(text string) (n int) {
		for n < 4 && f.mayConnect(netip.MustParseAddrPort(text)) == nil {
			n++
		}
		return n
	}
	if four, six, far := connects("127.0.0.1:443"), connects("[::1]:443"), connects("93.184.216.34:443"); four != 4 || six != 4 || far != 1 {
		t.Errorf("of 4 connections, %d and %d to loopback and %d elsewhere may begin", four, six, far)
	}
}
