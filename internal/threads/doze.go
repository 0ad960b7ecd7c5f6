package threads

import "syscall"

// Of prctl(2): by how many nanoseconds the kernel may let a thread sleep longer than it
// asks for.
const (
	setTimerSlack = 29 // PR_SET_TIMERSLACK; 0 is what the thread began with
	usualSlack    = 50_000
	dozing        = 500_000
)

// Doze has every thread sleep up to half a millisecond longer than it asks for, until Wake. It is for one of
// them: Go's monitor sleeps 20 µs at a time, which are 88 with the kernel's usual slack,
// and takes the processor for 5 to 10 from whoever has it, which is a tenth of a start. What it
// is there for, goroutines whose thread is in a long system call, waits as much longer.
//
// It is a matter of speed alone: where it cannot be done nothing is said.
func Doze() { _ = Each(syscall.SYS_PRCTL, setTimerSlack, dozing) }

// Wake undoes Doze.
func Wake() { _ = Each(syscall.SYS_PRCTL, setTimerSlack, usualSlack) }

// WakeThis undoes Doze for this thread, which is one that Doze has found. It is
// what the program has that is executed on it.
func WakeThis() { syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 0, 0) }
