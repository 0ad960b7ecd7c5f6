package sandbox

import (
	"os"
	"strconv"
	"syscall"

	"github.com/egressd/egressd/policy"
)

// ProcessOf returns what is known of the process that connected to a unix
// socket: its pid and, where it may be looked at and still is uid's, its
// program. It does not wait, and is nil where pid is not one.
//
// Its arguments are not read: a process can have its memory come from a file
// system of its own, and keep whoever reads there waiting for ever.
func ProcessOf(pid int, uid uint32) *policy.Process {
	if pid <= 0 {
		return nil
	}
	p := &policy.Process{PID: pid}
	dir := "/proc/" + strconv.Itoa(pid)
	var owner syscall.Stat_t
	if syscall.Stat(dir, &owner) != nil || owner.Uid != uid { // gone, or its number is another's by now
		return p
	}
	if exe, err := os.Readlink(dir + "/exe"); err == nil {
		p.Exe = exe[:min(len(exe), exeMost)]
	}
	return p
}

// exeMost is how much of a path is kept, in bytes.
const exeMost = 1024
