package containers

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/internal/pidfd"
	"github.com/egressd/egressd/sandbox"
)

// openFirst opens a container's first process. It returns nil if that ID names another process in this PID
// namespace.
func openFirst(pid int, id string) *pidfd.Process {
	if pid <= 0 {
		return nil
	}
	p, err := pidfd.Open(pid)
	if err != nil {
		return nil
	}
	if !strings.Contains(strings.Join(controlGroups(pid), "\n"), id) || p.Ended() {
		p.Close()
		return nil
	}
	return p
}

// ErrGone is for a container that has ended.
var ErrGone = errors.New("the container has ended")

// OpenFirst opens the first process of a container. The caller closes it.
func OpenFirst(k *sandbox.Container) (*pidfd.Process, error) {
	p := openFirst(k.PID, k.ID)
	if p == nil {
		return nil, ErrGone
	}
	return p, nil
}

// controlGroups returns the lines of /proc/PID/cgroup, one for each hierarchy: number, controllers, and the
// path as this process's own cgroup namespace shows it.
func controlGroups(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// inGroupsOf returns the container of a process, or nil. The process has to be in the control groups of the
// container's first process, in every hierarchy in which the container has its own group. A user can make a
// control group with a container's name, so a name proves nothing.
func (c *Engine) inGroupsOf(pid int) *sandbox.Container {
	groups := controlGroups(pid)
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.trouble != nil {
		return nil
	}
	for _, id := range containerIDs(groups) {
		if k := c.running[id]; k != nil && k.process != nil && within(groups, controlGroups(k.PID), id) && !k.process.Ended() {
			return k.Container
		}
	}
	return nil
}

// Behind returns the container of a process, or nil. It waits a little for the engine, which may not have
// reported the container yet. The caller checks afterwards that the ID still names the same process.
func (c *Engine) Behind(pid int) *sandbox.Container {
	late := time.NewTimer(behindFor)
	defer late.Stop()
	for {
		moved, trouble := c.state()
		k := c.inGroupsOf(pid)
		if k != nil || trouble != nil || len(containerIDs(controlGroups(pid))) == 0 {
			return k
		}
		select {
		case <-moved:
		case <-late.C:
			return nil
		}
	}
}

// behindFor is shorter than the time for which a client waits for its answer.
const behindFor = 4 * time.Second

// containerIDs returns the parts of control group paths that look like container IDs.
func containerIDs(groups []string) (ids []string) {
	for _, line := range groups {
		for part := range strings.FieldsFuncSeq(line, func(r rune) bool { return r == '/' || r == '-' || r == '.' || r == ':' }) {
			if isContainerID(part) {
				ids = append(ids, part)
			}
		}
	}
	return ids
}

// within reports whether a process is in the groups of a container's first process, or below them. Hierarchies
// in which the container has no group of its own do not count.
func within(groups, first []string, id string) bool {
	apart := 0
	for _, line := range first {
		if !strings.Contains(line, id) {
			continue
		}
		in := false
		for _, g := range groups {
			in = in || g == line || strings.HasPrefix(g, line+"/")
		}
		if !in {
			return false
		}
		apart++
	}
	return apart > 0
}
