package threads

import (
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
)

// Of prctl(2): by how many nanoseconds the kernel may let a thread sleep longer than it
// asks for.
const (
	setTimerSlack = 29 // PR_SET_TIMERSLACK; 0 is what the thread began with
	getTimerSlack = 30 // PR_GET_TIMERSLACK
	dozing        = 500_000
)

// had is the slack before Doze; 0 where no thread dozes.
var had atomic.Uintptr

// Doze has every thread sleep up to half a millisecond longer than it asks for, from now on. It is for one of
// them: Go's monitor sleeps 20 µs at a time, which are 88 with the kernel's usual slack,
// and takes the processor for 5 to 10 from whoever has it, which is a tenth of a start. What it
// is there for, goroutines whose thread is in a long system call, waits as much longer.
//
// It is a matter of speed alone: where it cannot be done nothing is said. It is called while
// nothing that could be hostile runs, see Each, and once.
func Doze() {
	slack, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, getTimerSlack, 0, 0)
	if errno == 0 && Each(syscall.SYS_PRCTL, setTimerSlack, dozing) == nil {
		had.Store(slack)
	}
}

// Awake calls start, which starts a process that is to have timers as any other.
func Awake(start func() error) error {
	slack := had.Load()
	if slack == 0 {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	set := func(to uintptr) { syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, to, 0) }
	set(slack)
	defer set(dozing)
	return start()
}

// Lull has a process that was executed a moment ago doze as this one does: the threads that its first one starts inherit
// that. One that it has started already does not, which costs no more than time. It takes a process in a user namespace
// of this one's user, and a kernel that lets whoever owns that (Linux 6.18 does); else that process is left to Doze.
func Lull(pid int) {
	if had.Load() == 0 {
		return
	}
	var self [20]byte
	if n, err := syscall.Readlink("/proc/self", self[:]); err != nil || string(self[:n]) != strconv.Itoa(syscall.Getpid()) {
		return // it is of another PID namespace, where that is another process
	}
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/timerslack_ns", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	_, _ = syscall.Write(fd, []byte(strconv.Itoa(dozing)))
}

// Lulled reports whether this thread dozes already, as Lull has it, and so most often all.
func Lulled() bool {
	slack, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, getTimerSlack, 0, 0)
	return errno == 0 && slack >= dozing
}

// WakeThis undoes Doze for this thread, which is one that was there before. It is
// what the program has that is executed on it.
func WakeThis() { syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 0, 0) }
