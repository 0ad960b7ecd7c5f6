package confined

import (
	"strconv"
	"syscall"
	"unsafe"
)

// FewSignals is the error of [Each] where this process cannot signal its own threads.
type FewSignals struct{ Problem, Hint string }

func (e *FewSignals) Error() string { return e.Problem }

// signalsFew is more than there are threads when this is used.
const signalsFew = 128

// Each stops all threads of this process and has each of them make a system call whose effect is that
// thread's alone. Threads and programs that are started later inherit the effect. The error is a
// [*FewSignals], that of the call, or [errors.ErrUnsupported] in a build with cgo, whose threads the
// runtime does not know.
func Each(call, first, second uintptr) error {
	if err := maySignal(); err != nil {
		return err
	}
	if _, _, errno := syscall.AllThreadsSyscall(call, first, second, 0); errno != 0 {
		return errno
	}
	return nil
}

// maySignal returns an error if no signals can be queued. The runtime signals each thread to have it
// make a call; if one signal is not queued, all threads stand still for good. So Each may be called only
// while no hostile program can queue signals in the name of this process's user.
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
