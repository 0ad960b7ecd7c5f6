//go:build linux && !noepoll

package relay

import (
	"errors"
	"syscall"
	"time"
	"unsafe"
)

const (
	edgeTriggered = 1 << 31 // EPOLLET, which package syscall has as a negative number
	exclusive     = 1 << 28 // EPOLLEXCLUSIVE
)

// An interest says which events of a descriptor its handler is told.
type interest uint32

const (
	streams  interest = syscall.EPOLLIN | syscall.EPOLLOUT | syscall.EPOLLRDHUP | edgeTriggered
	arrivals interest = syscall.EPOLLIN | exclusive // level-triggered
	closings interest = edgeTriggered
)

type event = syscall.EpollEvent

// A poller tells a loop of its descriptors, by epoll(7).
type poller struct {
	epoll, wake int
}

func (p *poller) open() error {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	wake, _, errno := syscall.RawSyscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if errno != 0 {
		syscall.Close(epoll)
		return errno
	}
	p.epoll, p.wake = epoll, int(wake)
	ev := event{Events: syscall.EPOLLIN, Fd: int32(wake)}
	if err := p.control(syscall.EPOLL_CTL_ADD, p.wake, &ev); err != nil {
		p.shut()
		return err
	}
	return nil
}

func (p *poller) shut() {
	syscall.Close(p.epoll)
	syscall.Close(p.wake)
}

// ring wakes the loop. It is safe for concurrent use.
func (p *poller) ring() {
	one := uint64(1)
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(p.wake), uintptr(unsafe.Pointer(&one)), 8)
}

// awake reports whether an event is only the wake-up of ring.
func (p *poller) awake(ev event) bool {
	if int(ev.Fd) != p.wake {
		return false
	}
	var n uint64
	syscall.RawSyscall(syscall.SYS_READ, uintptr(p.wake), uintptr(unsafe.Pointer(&n)), 8)
	return true
}

func (p *poller) add(fd int, generation int32, what interest) error {
	ev := event{Events: uint32(what), Fd: int32(fd), Pad: generation}
	return p.control(syscall.EPOLL_CTL_ADD, fd, &ev)
}

func (p *poller) remove(fd int) { p.control(syscall.EPOLL_CTL_DEL, fd, new(event)) }

// closing is called before fd is closed, which has epoll forget it.
func (p *poller) closing(int) {}

func (p *poller) control(op, fd int, ev *event) error {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_CTL, uintptr(p.epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(ev)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// wait first looks without giving up the processor, which under load is all
// it takes, and blocks only when nothing is there.
func (l *Loop) wait(events []event) (int, error) {
	if n := l.look(events); n > 0 || l.left() {
		return n, nil
	}
	n, err := syscall.EpollWait(l.epoll, events, l.timers.waitFor(time.Now()))
	if errors.Is(err, syscall.EINTR) {
		return 0, nil
	}
	return n, err
}

// look returns how many events are there.
func (l *Loop) look(events []event) int {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}
