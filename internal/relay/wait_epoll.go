//go:build linux && !noepoll

package relay

import (
	"errors"
	"os"
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
	idle        *os.File        // epoll once more, for Go's poller to wait for; nil once there was a connection
	resting     syscall.RawConn // of idle, or nil
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
	p.idle, p.resting = polled(epoll)
	ev := event{Events: syscall.EPOLLIN, Fd: int32(wake)}
	if err := p.control(syscall.EPOLL_CTL_ADD, p.wake, &ev); err != nil {
		p.shut()
		return err
	}
	return nil
}

func (p *poller) shut() {
	p.endRest()
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
	if what != arrivals {
		p.endRest()
	}
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
	if n := l.look(events); n > 0 || l.owes() {
		return n, nil
	}
	if l.resting != nil {
		return l.rest(events), nil
	}
	n2, err := syscall.EpollWait(l.epoll, events, l.timers.waitFor(time.Now()))
	if errors.Is(err, syscall.EINTR) {
		return 0, nil
	}
	return n2, err
}

// look returns how many events are there.
func (l *Loop) look(events []event) int {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// rest waits like wait until the first connection arrives, but in Go's poller, so that an unused loop occupies
// no thread. Creating and ending that thread would cost a tenth of the start of a short run.
func (l *Loop) rest(events []event) (n int) {
	var until time.Time
	if wait := l.timers.waitFor(time.Now()); wait >= 0 {
		until = time.Now().Add(time.Duration(wait) * time.Millisecond)
	}
	err := l.idle.SetReadDeadline(until)
	if err == nil {
		err = l.resting.Read(func(uintptr) bool {
			n = l.look(events)
			return n > 0
		})
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		l.endRest() // wait does without
	}
	return n
}

// polled hands a descriptor of its own for an epoll to Go's poller, or none where that
// takes none.
func polled(epoll int) (*os.File, syscall.RawConn) {
	fd, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(epoll), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, nil
	}
	if syscall.SetNonblock(int(fd), true) != nil { // else os.NewFile does not have it polled
		syscall.Close(int(fd))
		return nil, nil
	}
	f := os.NewFile(fd, "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, nil
	}
	return f, raw
}

// endRest closings the use of Go's poller. The loop's epoll must not stay in the poller's epoll: adding a
// descriptor to a nested epoll takes a lock of the whole machine, which any program can hold for milliseconds.
func (p *poller) endRest() {
	if p.idle != nil {
		p.idle.Close()
		p.idle, p.resting = nil, nil
	}
}
