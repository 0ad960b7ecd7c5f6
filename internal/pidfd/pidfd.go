// Package pidfd holds processes by descriptors (pidfd_open(2)). A process ID can become another
// process's when the first one has ended; a descriptor cannot.
package pidfd

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// A Process is held until Close. A nil Process is one of which nothing is known: it has not ended.
// The methods are safe for concurrent use.
type Process struct {
	PID int

	mu sync.Mutex
	fd int // -1: closed
}

// Open holds the process with an ID of this PID namespace. The caller closes it.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	return &Process{PID: pid, fd: fd}, nil
}

// Ended reports whether the process has ended, or Close was called.
func (p *Process) Ended() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fd < 0 || Ended(p.fd)
}

// Ended reports whether the process of a descriptor has ended.
func Ended(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// Wait returns when the process has ended. Close does not interrupt it.
func (p *Process) Wait() {
	fd, err := p.Duplicate()
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Duplicate returns a descriptor of its own for the process, which the caller closes.
func (p *Process) Duplicate() (fd int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
}

// Close lets go of the process.
func (p *Process) Close() {
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
