package confined

import "golang.org/x/sys/unix"

const (
	architecture = unix.AUDIT_ARCH_AARCH64
	foreign      = 0xffffffff // there are none
)

// ofArchitecture are calls that are refused and that others do not have.
var ofArchitecture = []uint32{unix.SYS_KEXEC_FILE_LOAD}
