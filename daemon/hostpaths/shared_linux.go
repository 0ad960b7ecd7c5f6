package hostpaths

import (
	"os"
	"slices"

	"github.com/egressd/egressd/integrations/boundary"
	"github.com/egressd/egressd/internal/mounttable"
	"github.com/egressd/egressd/sandbox/containers"
)

// askEngine notes what the engine at a socket says of itself.
func askEngine(m *boundary.Machine, engine string) { m.Engines, m.Loose = containers.About(engine) }

// firstPIDNamespace is the name of the machine's own PID namespace: the kernel gives it a fixed number (PROC_PID_INIT_INO).
const firstPIDNamespace = "pid:[4026531836]"

// IsShared reports whether a file may be shared with other containers: egressd is in a container, and the file is mounted by
// itself. Engines mount /etc/hosts and /etc/resolv.conf so, and one file into all containers of a pod or of one network.
func IsShared(path string) bool {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns == firstPIDNamespace {
		return false
	}
	return isMounted(path)
}

// isMounted reports whether a file is mounted by itself, or cannot be looked at.
func isMounted(path string) bool {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if _, missing := os.Stat(path); err != nil || missing != nil {
		return true
	}
	real := Real(path)
	return slices.ContainsFunc(mounttable.Parse(string(mounts)), func(m mounttable.Mount) bool { return m.Point == real })
}
