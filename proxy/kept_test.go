package proxy

import (
	"testing"

	"github.com/egressd/egressd/internal/carry"
)

// TestWhatIsKeptForSandboxesIsBounded has more of them than there are at a time.
func TestWhatIsKeptForSandboxesIsBounded(t *testing.T) {
	s := new(Server)
	s.start.Do(s.prepare)
	first := new(carry.Meter)
	for _, far := range []bool{false, true} {
		if l := s.limitsFor(first, far); l.Meter != first || l.Turn != nil != far || l != s.limitsFor(first, far) {
			t.Errorf("limits %+v", l)
		}
	}
	for range 3 * limitsMost {
		s.limitsFor(new(carry.Meter), false)
	}
	kept := 0
	s.limitsOf.Range(func(any, any) bool { kept++; return true })
	if kept > limitsMost || kept == 0 {
		t.Errorf("the limits of %d sandboxes are kept", kept)
	}
	if l := s.limitsFor(first, false); l.Meter != first {
		t.Errorf("limits %+v of who was forgotten", l)
	}
}
