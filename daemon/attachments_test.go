//go:build linux

package daemon

import (
	"fmt"
	"testing"
)

// TestOneSandboxLeavesNetworks has one sandbox after the other attach all it can.
func TestOneSandboxLeavesNetworks(t *testing.T) {
	var s attachments
	network := uint64(0)
	for n, want := range []int{32, 32, 16, 8, 4, 2, 1} {
		name, got := fmt.Sprint("s", n), 0
		for network++; s.reserve(name, network) == nil; network++ {
			got++
		}
		if got != want {
			t.Errorf("sandbox %d attaches %d networks, want %d", n, got, want)
		}
	}
	s.giveBack("s0", 1)
	if err := s.reserve("another", 1); err != nil {
		t.Errorf("what was given back is not to be had: %v", err)
	}
}
