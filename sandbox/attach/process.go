//go:build linux

package attach

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/pidfd"
	"github.com/egressd/egressd/sandbox"
)

// findProcess opens the process for which the network is attached. The attachment ends with that process.
func (a *Conn) findProcess(o *Request) (err error) {
	fd := -1
	switch o.Kind {
	case KindAttach, KindRun:
		last := len(a.fds) - 1
		fd, a.fds = a.fds[last], a.fds[:last]
	case KindEnter:
		raw, err := a.conn.SyscallConn()
		if err != nil {
			return err
		}
		var failed error
		if err := raw.Control(func(c uintptr) { fd, failed = peerProcess(int(c)) }); err != nil || failed != nil {
			return errors.Join(err, failed)
		}
	}
	if a.PID, err = processOf(fd); err != nil {
		unix.Close(fd)
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return err
	}
	a.process = os.NewFile(uintptr(fd), "process")
	return nil
}

// FindContainer asks find for the container of the attached process, and notes the container in Attacher. The
// process of a run is in no container.
func (a *Conn) FindContainer(find func(pid int) *sandbox.Container) {
	if a.PID <= 0 || a.process == nil || a.Request.Kind == KindRun {
		return
	}
	k := find(a.PID)
	ended := true
	raw, err := a.process.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { ended = pidfd.Ended(int(fd)) })
	}
	if err == nil && !ended { // else the number may be another's by now
		a.Attacher.Container = k
	}
}

func peerPID(fd int) int {
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(who.Pid)
}

// peerProcess opens the process that has connected. Before Linux 6.5 it opens the process by its ID, which
// another process may have got only if the client has ended.
func peerProcess(conn int) (int, error) {
	fd, err := unix.GetsockoptInt(conn, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		fd, err = unix.PidfdOpen(peerPID(conn), 0)
	}
	if err != nil {
		return -1, fmt.Errorf("find the process of the client: %w", err)
	}
	unix.CloseOnExec(fd)
	return fd, nil
}

// processOf returns the ID of the process of a descriptor, or 0 if this PID namespace does not see the process.
func processOf(fd int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	var pid int
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "Pid:\t%d", &pid); n == 1 {
			return max(pid, 0), nil
		}
	}
	return 0, errors.New("the last descriptor is not a process")
}
