// Package threads has every thread of this process make a system call whose effect is
// that thread's alone. It imports little, since package ahead is initialised before the rest of the
// program.
package threads

import (
	"strconv"
	"syscall"
	"unsafe"
)

// FewSignals is the error of a process that cannot signal its own threads, and what to do
// about it.
type FewSignals struct{ Problem, Hint string }

func (e *FewSignals) Error() string { return e.Problem }

// signalsFew is more than there are threads when this is used.
const signalsFew = 128

// Each has every thread make the call, and whoever they start inherits what came of it. They are
// stopped for it. The error is a [*FewSignals], that of the call, or [errors.ErrUnsupported] in a
// build with cgo, whose threads the runtime does not know.
func Each(call, first, second uintptr) error {
	if err := maySignal(); err != nil {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall(call, first, second, 0); errno != 0 {
		return errno
	}
	return nil
}

// maySignal returns an error where no signals can be queued: the runtime has each thread
// make a call by one, and where one is not queued all of them stand still for good. So what could queue signals
// in the name of this process's user has to be kept from it, or not to run yet.
func maySignal() error {
	const pending, monotonic = 11, 1 // RLIMIT_SIGPENDING, CLOCK_MONOTONIC
	var signals syscall.Rlimit
	if err := syscall.Getrlimit(pending, &signals); err == nil && signals.Cur < signalsFew {
		few := strconv.Itoa(signalsFew)
		return &FewSignals{strconv.FormatUint(signals.Cur, 10) + " signals may be queued, and it takes " + few, "ulimit -i " + few}
	}
	var timer int32 // has its signal queued beforehand
	_, _, errno := syscall.RawSyscall(syscall.SYS_TIMER_CREATE, monotonic, 0, uintptr(unsafe.Pointer(&timer)))
	switch errno {
	case 0:
		syscall.RawSyscall(syscall.SYS_TIMER_DELETE, uintptr(timer), 0, 0)
	case syscall.EAGAIN:
		return &FewSignals{"all the signals that this user may queue are queued, by another of its programs", "end the program that has queued them; SigQ in /proc/PID/status says how many of its user are queued"}
	}
	return nil
}
