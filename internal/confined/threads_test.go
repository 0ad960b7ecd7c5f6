package confined

import (
	"syscall"
	"testing"
)

// TestFewSignals has the process be allowed to queue too few signals for its threads.
func TestFewSignals(t *testing.T) {
	const pending = 11 // RLIMIT_SIGPENDING
	var own syscall.Rlimit
	if err := syscall.Getrlimit(pending, &own); err != nil {
		t.Fatal(err)
	}
	few := own
	few.Cur = signalsFew - 1
	if err := syscall.Setrlimit(pending, &few); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(pending, &own)
	err := Each(syscall.SYS_GETPID, 0, 0)
	if _, ok := err.(*FewSignals); !ok {
		t.Errorf("got %v, want that there are too few signals", err)
	}
}
