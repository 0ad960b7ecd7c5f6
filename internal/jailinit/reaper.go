package jailinit

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forkReaper starts the reaper and returns its pid. It must be called on a locked thread.
//
// The reaper is the first process of the PID namespace. The kernel makes it the parent of processes that have lost theirs, and kills
// all others when it ends. It ends with egressd, by the pipe life. Jail init waits for the end of the pipe ready, which the reaper
// closes when the program cannot reach it any more.
//
// The reaper is a fork of this process that executes nothing: a start of Go would cost each start of a sandbox two milliseconds,
// and each sandbox four threads. Go's runtime does not work in a fork. So the reaper makes system calls alone, and all signals are
// blocked in it.
func forkReaper(life, ready int) (pid int, err error) {
	limit := unix.Rlimit{Cur: 1 << 10}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	var all, own unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &own); err != nil {
		return 0, err
	}
	child, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno == 0 && child == 0 {
		reap(uintptr(life), uintptr(ready), uintptr(limit.Cur))
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &own, nil); err != nil {
		return 0, err
	}
	if errno != 0 {
		return 0, errno
	}
	return int(child), nil
}

// Arguments of the reaper's system calls.
var (
	rootFolder     = [...]byte{'/', 0}
	ignoredSignals = struct{ handler, flags, restorer, mask uintptr }{handler: 1} // SIG_IGN: the kernel reaps its children
	oneByte        [1]byte
)

// reap is the reaper. No function of the reaper may grow its stack or be preempted, hence nosplit, and none may
// call the race detector.
//
//go:nosplit
//go:norace
func reap(life, ready, descriptors uintptr) {
	const setSize = 8
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0, 0); e != 0 { // so that the program cannot trace it
		end()
	}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_SETSID, 0, 0, 0, 0, 0, 0); e != 0 { // so that the terminal sends it no signals
		end()
	}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_CHDIR, uintptr(unsafe.Pointer(&rootFolder)), 0, 0, 0, 0, 0); e != 0 {
		end()
	}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGCHLD), uintptr(unsafe.Pointer(&ignoredSignals)), 0, setSize, 0, 0); e != 0 {
		end()
	}
	for fd := uintptr(0); fd < descriptors; fd++ {
		if fd == life || fd == ready {
			continue
		}
		if _, _, e := syscall.RawSyscall6(unix.SYS_CLOSE_RANGE, fd, untilNext(fd, life, ready), 0, 0, 0, 0); e == 0 {
			fd = untilNext(fd, life, ready)
			continue
		}
		syscall.RawSyscall6(syscall.SYS_CLOSE, fd, 0, 0, 0, 0, 0) // before Linux 5.9
	}
	syscall.RawSyscall6(syscall.SYS_CLOSE, ready, 0, 0, 0, 0, 0)
	for {
		if _, _, e := syscall.RawSyscall6(syscall.SYS_READ, life, uintptr(unsafe.Pointer(&oneByte)), 1, 0, 0, 0); e != syscall.EINTR {
			end()
		}
	}
}

// untilNext returns the last descriptor from fd on that is before both of two.
//
//go:nosplit
//go:norace
func untilNext(fd, one, other uintptr) uintptr {
	last := uintptr(1<<31 - 1)
	if one > fd {
		last = one - 1
	}
	if other > fd && other-1 < last {
		last = other - 1
	}
	return last
}

//go:nosplit
//go:norace
func end() {
	for {
		syscall.RawSyscall6(syscall.SYS_EXIT_GROUP, 0, 0, 0, 0, 0, 0)
	}
}
