// Package confined takes from a daemon, for good and on all of its threads, the system
// calls and capabilities that it has no use for, so that a flaw in it reaches less of
// the kernel. What the daemon starts inherits it.
package confined

import (
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused are calls that administer the machine, make or enter namespaces, look into
// other processes, or have a history of flaws and no use here: what Docker refuses to
// containers without capabilities, too. Those of one architecture are in calls_*.go.
var refused = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_KEXEC_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN,
	unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, openTreeAttr,
	unix.SYS_SETNS, unix.SYS_UNSHARE, clone3,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_ACCT, unix.SYS_SWAPON, unix.SYS_SWAPOFF,
	unix.SYS_REBOOT, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
	unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_PERSONALITY, unix.SYS_LOOKUP_DCOOKIE,
}

const (
	clone3       = 435 // its flags are in memory, where a filter cannot read them; programs go on with clone(2)
	openTreeAttr = 467 // no constant yet

	// namespaces are the flags of clone(2) that make one.
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// FilterCalls has the kernel answer these calls by "no such call", on all threads. No
// thread may gain privileges by execve(2) any more. Programs of other architectures that the kernel knows,
// as of 32 bits, can make no call at all.
func FilterCalls() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil { // which goes to all threads with the filter
		return err
	}
	program := callFilter()
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	out, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f)))
	switch {
	case errno != 0:
		return errno
	case out != 0:
		return fmt.Errorf("thread %d has another filter", out)
	}
	return nil
}

// Offsets in struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16 // of the first, its lower half
)

// callFilter is the program in classic BPF.
func callFilter() []unix.SockFilter {
	f := []unix.SockFilter{
		load(offsetArch), jump(unix.BPF_JEQ, architecture, 1, 0), answers(unix.ENOSYS),
		load(offsetNumber), jump(unix.BPF_JGE, foreign, 0, 1), answers(unix.ENOSYS),
	}
	for _, n := range append(ofArchitecture, refused...) {
		f = append(f, jump(unix.BPF_JEQ, n, 0, 1), answers(unix.ENOSYS))
	}
	return append(f,
		jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 3), load(offsetArgs), jump(unix.BPF_JSET, namespaces, 0, 1), answers(unix.EPERM),
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(code uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | code, Jt: yes, Jf: no, K: k}
}

func answers(errno unix.Errno) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

// kept are the capabilities that a daemon which is given them may need: to listen below 1024
// and where connections are captured, to read packet filters, to tell which process opened what, and to use files
// and sockets that are somebody else's.
const kept = 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SYS_PTRACE |
	1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_CHOWN | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// DropCapabilities gives up all capabilities but those of network and files, on all
// threads and for all that they start. A process without capabilities keeps none, and that is no error. The error is
// [errors.ErrUnsupported] in a build with cgo.
func DropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return err
	}
	if have[0].Permitted|have[1].Permitted == 0 {
		return nil
	}
	for c := uintptr(0); have[0].Effective&(1<<unix.CAP_SETPCAP) != 0; c++ {
		if c < 64 && kept&(uint64(1)<<c) != 0 {
			continue
		}
		_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errno == syscall.EINVAL {
			break // the kernel knows no more
		}
		if errno != 0 {
			return errno // ENOTSUP is errors.ErrUnsupported
		}
	}
	given := have
	for i := range have {
		mask := uint32(uint64(kept) >> (32 * i))
		have[i].Permitted &= mask
		have[i].Effective &= mask
		have[i].Inheritable &= mask
	}
	if have == given {
		return nil
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&have[0])), 0)
	runtime.KeepAlive(&have)
	if errno != 0 {
		return errno // ENOTSUP is errors.ErrUnsupported
	}
	return nil
}

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
