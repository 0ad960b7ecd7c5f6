package waysin

import (
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
)

// TestIdleTunnelEnds leaves a tunnel alone until egressd gives it up.
func TestIdleTunnelEnds(t *testing.T) {
	world.Covers(t, "LC-12")
	d := world.Start(t, world.PolicyText(t, "P0")+"limits: {idle_timeout: 2s}\n")
	idle := d.MustOpenTunnel(t, "allowed.test:443")
	if idle.EndsWithin(500 * time.Millisecond) {
		t.Error("the tunnel ended before its time")
	}
	if !idle.EndsWithin(world.Patience) {
		t.Error("the tunnel was not given up")
	}
	if r := d.CloseRecord(t, idle.LocalAddr().String()); !strings.Contains(string(r.Outcome), "idle") {
		t.Errorf("the close record says %q", r.Outcome)
	}
}
