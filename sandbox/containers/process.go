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

// openFirst opens the first process of a container, or returns nil where that number is
// not its in this PID namespace.
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

// controlGroups are the lines of /proc/PID/cgroup: of each hierarchy its number, its
// controllers and the path, as seen from this process's own cgroup namespace, whatever the
// other one's is.
func controlGroups(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// inGroupsOf returns the container that a process is in, or nil: the one whose engine has put it
// there, in all hierarchies in which it keeps containers apart. A control group that only looks
// like one of a container, as any user may make one, is none: that of the container's first
// process counts.
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

// Behind returns the container that a process is in, or nil. It waits where the process may have
// been started just now: an engine says a little late what it has started. The caller sees to it
// that the number is still the process's afterwards.
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

// behindFor is less than who hands a network in waits for an answer.
const behindFor = 4 * time.Second

// containerIDs are what may be those of containers in paths of control groups.
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

// within reports whether a process with those groups is where the first one of the
// container is, or below, in each hierarchy in which that is in a group of its own.
func within(groups, first []string, id string) bool {
	apart := 0
	for _, line := range first {
		if !strings.Contains(line, id) {
			continue
		}
		inside := false
		for _, g := range groups {
			inside = inside || g == line || strings.HasPrefix(g, line+"/")
		}
		if !inside {
			return false
		}
		apart++
	}
	return apart > 0
}
