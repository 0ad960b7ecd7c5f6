package load

import (
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// forgetful drops what arrives at port 7777 from a port that has sent nothing for five seconds, except a new connection.
const forgetful = `table inet forgetful {
	set seen { type inet_service; flags dynamic,timeout; timeout 5s; }
	chain arriving {
		type filter hook prerouting priority -300; policy accept
		tcp dport 7777 tcp flags & (syn | ack) == syn update @seen { tcp sport } accept
		tcp dport 7777 tcp sport @seen update @seen { tcp sport } accept
		tcp dport 7777 drop
	}
}
`

// TestASilentTunnelOutlivesAFilterThatForgets: egressd keeps the connection to the upstream alive, since a client's own
// keepalives end at egressd.
func TestASilentTunnelOutlivesAFilterThatForgets(t *testing.T) {
	d := world.Start(t, routedText)
	if err := d.World.Internet.Load(forgetful); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.World.Internet.Load("delete table inet forgetful\n"); err != nil {
			t.Error(err)
		}
	})
	c := echoThrough(t, d.World.Sandbox, d.Address())
	time.Sleep(11 * time.Second) // twice as long as the filter remembers
	c.SetDeadline(time.Now().Add(3 * time.Second))
	if err := roundTrip(c, []byte("still here")); err != nil {
		t.Error(err)
	}
}
