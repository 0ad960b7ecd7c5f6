package waysin

import (
	"bufio"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/policy"
)

// expressible reports whether a vector's case can be made by a captured connection.
func expressible(v *world.Vector, to string) bool {
	_, _, ok := v.CapturedTo(to)
	return ok && (v.Ways == nil || slices.Contains(v.Ways, world.WayCaptured)) && v.Inside == "" && v.Policy != "P-auth"
}

// TestConformanceCaptured runs the vectors through connections that the rules of
// the manual have captured.
func TestConformanceCaptured(t *testing.T) {
	world.Covers(t, "KC-01", "KC-03", "KC-06", "TL-34")
	all := world.Vectors(t)
	for _, way := range []string{world.WayRedirect, world.WayTProxy} {
		t.Run(way, func(t *testing.T) {
			world.Open(t).Capture(t, way)
			for _, name := range world.Policies() {
				t.Run(name, func(t *testing.T) { capturedConforms(t, way, name, all) })
			}
		})
	}
}

func capturedConforms(t *testing.T, way, name string, all []world.Vector) {
	tried := 0
	var d *world.Daemon
	for i := range all {
		v := &all[i]
		for _, to := range v.To {
			if v.Policy != name || !expressible(v, to) {
				continue
			}
			if d == nil {
				d = world.Start(t, world.WithCapture(world.PolicyText(t, name), way))
			}
			tried++
			tryCaptured(t, d, v, way, to)
		}
	}
	if d == nil {
		return
	}
	t.Logf("%d cases", tried)
	d.Healthy(t, d.Descriptors())
}

// tryCaptured is try, with what is expected of captured connections.
func tryCaptured(t *testing.T, d *world.Daemon, v *world.Vector, way, to string) {
	t.Helper()
	own := *v
	own.Eager = false // there is nothing to be in one piece with
	if v.Captured != nil {
		own.Expect, own.Or = *v.Captured, nil
		if own.Expect.Host == "" && own.Expect.Deny != nil {
			own.Expect.Host = v.Elsewhere()
		}
	} else if v.Expect.Cut != nil || v.Expect.Ended { // no name that counts was shown
		own.Expect, own.Or = world.Expectation{Deny: []policy.Class{policy.DefaultDeny}, Host: v.Elsewhere()}, nil
	}
	d.Try(t, &own, way, to)
}

// readLine reads a line of what comes, within the connection's deadline.
func readLine(c net.Conn) string {
	c.SetReadDeadline(time.Now().Add(world.Patience))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return line
}
