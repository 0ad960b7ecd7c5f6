package threads

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
)

// TestDozeIsOfAllThreads asks every thread, which is fatal where they differ.
func TestDozeIsOfAllThreads(t *testing.T) {
	if err := Each(syscall.SYS_GETPID, 0, 0); errors.Is(err, errors.ErrUnsupported) {
		return // a build with cgo; TestWhatIsStartedHasTimersAsAnyOther of package e2e has one without
	}
	begun := make(chan bool)
	over := make(chan bool)
	for range 4 { // more threads than there were
		go func() {
			runtime.LockOSThread()
			begun <- true
			<-over
		}()
		<-begun
	}
	defer close(over)
	slack := func() uintptr {
		r, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, getTimerSlack, 0, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
		return r
	}
	before := slack()
	Doze()
	if got := slack(); got != dozing {
		t.Errorf("dozing, all threads have a slack of %d ns, want %d", got, dozing)
	}
	var of uintptr
	if err := Awake(func() error { of, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, getTimerSlack, 0, 0); return nil }); err != nil || of != before {
		t.Errorf("what is started has a slack of %d ns, %v, want %d", of, err, before)
	}
	if got := slack(); got != dozing {
		t.Errorf("then all threads have a slack of %d ns, want %d", got, dozing)
	}
}

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
