package sandbox

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A process is the first one of a container, which ends when that does. A nil process is
// one of which nothing is known.
type process struct {
	mu sync.Mutex
	fd int // pidfd_open(2); -1: closed
}

// openFirst opens the first process of a container, or returns nil where that number is
// not its in this PID namespace.
func openFirst(pid int, id string) *process {
	if pid <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	p := &process{fd: fd}
	if !strings.Contains(strings.Join(controlGroups(pid), "\n"), id) || p.over() {
		p.close()
		return nil
	}
	return p
}

// ErrContainerGone is for a container that has ended.
var ErrContainerGone = errors.New("the container has ended")

// Open opens the first process of the container. The caller closes it.
func (k *Known) Open() (*Attached, error) {
	p, err := OpenProcess(k.pid)
	if err != nil {
		return nil, ErrContainerGone
	}
	if !strings.Contains(strings.Join(controlGroups(k.pid), "\n"), k.ID) || hasEnded(p.there) {
		p.Close()
		return nil, ErrContainerGone
	}
	return p, nil
}

// over reports whether the process has ended.
func (p *process) over() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fd < 0 || hasEnded(p.fd)
}

func hasEnded(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

func (p *process) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
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

// Container finds the container that the process behind an arrival is in: the one whose
// engine has put it there, in all hierarchies in which it keeps containers apart. A control
// group that only looks like one of a container, as any user may make one, is none: that
// of the container's first process counts.
func (c *Containers) Container(a *Arrival) *Known {
	if c == nil || a.PID <= 0 || a.there == nil || a.Offer.Kind == OfferRun {
		return nil
	}
	k := c.awaitBehind(a.PID)
	ended := true
	raw, err := a.there.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { ended = hasEnded(int(fd)) })
	}
	if err != nil || ended { // the number may be another's by now
		return nil
	}
	return k
}

// Behind returns the container that a process is in, or nil. The caller sees to it
// that the number is still the process's afterwards.
func (c *Containers) Behind(pid int) *Known {
	groups := controlGroups(pid)
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.trouble != nil {
		return nil
	}
	for _, id := range containerIDs(groups) {
		if k := c.running[id]; k != nil && k.process != nil && within(groups, controlGroups(k.pid), id) && !k.process.over() {
			return k
		}
	}
	return nil
}

// awaitBehind is Behind for who may have been started just now: an engine says a little late
// what it has started.
func (c *Containers) awaitBehind(pid int) *Known {
	late := time.NewTimer(behindFor)
	defer late.Stop()
	for {
		moved, trouble := c.state()
		k := c.Behind(pid)
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
