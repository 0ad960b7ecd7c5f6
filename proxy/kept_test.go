package proxy

import (
	"testing"

	"github.com/egressd/egressd/internal/relay"
)

// TestWhatIsKeptForSandboxesIsBounded has more of them than there are at a time.
func TestWhatIsKeptForSandboxesIsBounded(t *testing.T) {
	s := new(Server)
	s.start.Do(s.prepare)
	defer func() {
		for _, l := range s.loops {
			l.Close()
		}
		s.running.Wait()
	}()
	first := new(relay.Meter)
	for _, web := range []bool{true, false} {
		if l := s.limitsFor(first, web); l.Meter != first || l.ServerFirst == web || l != s.limitsFor(first, web) {
			t.Errorf("limits %+v", l)
		}
	}
	for range 3 * limitsMost {
		s.limitsFor(new(relay.Meter), true)
	}
	kept := 0
	s.limitsOf.Range(func(any, any) bool { kept++; return true })
	if kept > limitsMost || kept == 0 {
		t.Errorf("the limits of %d sandboxes are kept", kept)
	}
	if l := s.limitsFor(first, true); l.Meter != first {
		t.Errorf("limits %+v of who was forgotten", l)
	}
}
