package confined

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that a daemon which is given them may need: to listen below 1024
// and where connections are captured, to read packet filters, to tell which process opened what, and to use files
// and sockets that are somebody else's.
const kept = 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SYS_PTRACE |
	1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_CHOWN | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// DropCapabilities gives up all capabilities but those of network and files, on all
// threads and for all that they start. What is not there is not missed. The error is
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
