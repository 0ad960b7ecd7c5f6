package exits

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// DieOf ends this process by the signal that ended its program, as a shell, make or git expect of a program that
// a signal has ended: a loop ends at Ctrl-C only then. It returns if s is 0, or if the kernel does not deliver
// the signal, as to the first process of a container.
func DieOf(s syscall.Signal) {
	if s == 0 || os.Getpid() == 1 {
		return
	}
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) // a dump would be of egressd
	// Not signal.Reset: Go's own default prints stacks for some.
	const setSize = 8
	usual := struct{ handler, flags, restorer, mask uintptr }{} // SIG_DFL
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&usual)), 0, setSize, 0, 0)
	_ = syscall.Kill(os.Getpid(), s)
	time.Sleep(time.Second) // it ends here
}
