// Package confined takes from a daemon, for good and on all of its threads, the system
// calls and capabilities that it has no use for, so that a flaw in it reaches less of
// the kernel. What the daemon starts inherits it.
package confined

import (
	"fmt"
	"runtime"
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
