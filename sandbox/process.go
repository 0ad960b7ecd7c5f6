package sandbox

import (
	"os"
	"strconv"
	"syscall"

	"github.com/egressd/egressd/policy"
)

// ProcessOf returns the process that connected to a Unix socket: its ID, and its executable if the process
// still belongs to uid. It never blocks. It returns nil if pid is not positive.
//
// ProcessOf does not read arguments: a process can map its memory from a file system of its own and block every
// reader.
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
