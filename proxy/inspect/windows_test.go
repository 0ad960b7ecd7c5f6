package inspect

import (
	"testing"

	"github.com/egressd/egressd/internal/fair"
)

// TestHowManyTunnelsHaveAll is what the manual says of windows.
func TestHowManyTunnelsHaveAll(t *testing.T) {
	r := new(fair.MemoryQuota)
	r.SetDefault(h2MemoryOfSandbox)
	full := 0
	for r.Reserve("a", "a").GrowFair(downloadBuffer, leastWindow) == downloadBuffer && r.Reserve("a", "a").GrowFair(uploadBuffer, leastWindow) == uploadBuffer {
		full++
	}
	if full != 24 {
		t.Errorf("%d tunnels have all", full)
	}
}

func TestAStreamDoesNotUseAClosedConnection(t *testing.T) {
	r := new(fair.MemoryQuota)
	r.SetMost(100)
	a := r.Reserve("a", "a")
	a.Release()
	b := r.Reserve("b", "b")
	st := stream{window: b}
	if st.holdWindow(a) || st.window != b {
		t.Error("a stream uses a connection that has closed")
	}
}
