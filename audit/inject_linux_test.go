package audit

import (
	"errors"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An injector has one system call of this process fail, on whatever thread it is made,
// or has it be the last one. The kernel tells it of each such call before it is made
// (seccomp_unotify(2)).
type injector struct {
	listener uintptr

	mu    sync.Mutex
	call  int           // the number of the system call that counts
	at    int           // that many have to be made; 0 for none
	error syscall.Errno // what the last of them comes to; 0 for the end of the process
	seen  int
}

// Two structures of linux/seccomp.h.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		at         uint64
		args       [6]uint64
	}
	response struct {
		id    uint64
		value int64
		error int32
		flags uint32
	}
)

// newInjector installs a filter for some system calls in this process, for good.
func newInjector(t *testing.T, calls ...int) *injector {
	t.Helper()
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}}
	for i, call := range calls {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(call), Jt: uint8(len(calls) - i)})
	}
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	fd, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		t.Fatal(errno)
	}
	in := &injector{listener: fd}
	go in.answer()
	return in
}

// answer answers the kernel until the process ends.
func (in *injector) answer() {
	for {
		var n notification
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, in.listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
		if errno == syscall.EINTR || errno == syscall.ENOENT {
			continue
		}
		if errno != 0 {
			panic(errno)
		}
		r := response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if fails, err := in.judge(int(n.nr)); fails {
			r.flags, r.error = 0, -int32(err)
		}
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, in.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
		if errno != 0 && !errors.Is(errno, syscall.ENOENT) {
			panic(errno)
		}
	}
}

func (in *injector) judge(call int) (fails bool, err syscall.Errno) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if call != in.call {
		return false, 0
	}
	in.seen++
	if in.seen != in.at {
		return false, 0
	}
	if in.error == 0 {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	}
	return true, in.error
}

// arm has the at-th call from now on fail, or none where at is 0. It returns how many
// there were since it was last called.
func (in *injector) arm(call, at int, err syscall.Errno) (seen int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	seen = in.seen
	in.call, in.at, in.error, in.seen = call, at, err, 0
	return seen
}
