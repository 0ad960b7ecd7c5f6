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
		return // a build with cgo; TestRunIsAwakeAgain of package e2e has one without
	}
	const getTimerSlack = 30 // PR_GET_TIMERSLACK
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
	Doze()
	if got := slack(); got != dozing {
		t.Errorf("dozing, all threads have a slack of %d ns, want %d", got, dozing)
	}
	Wake()
	if got := slack(); got != usualSlack {
		t.Errorf("awake, all threads have a slack of %d ns, want %d", got, usualSlack)
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
