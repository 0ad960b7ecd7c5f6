package relay

import (
	"errors"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// wait first looks without giving up the processor, which under load is all
// it takes, and blocks only when nothing is there.
func (l *Loop) wait(events []syscall.EpollEvent) (int, error) {
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
func (l *Loop) look(events []syscall.EpollEvent) int {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// rest waits like wait until the first connection arrives, but in Go's poller, so that an unused loop occupies
// no thread. Creating and ending that thread would cost a tenth of the start of a short run.
func (l *Loop) rest(events []syscall.EpollEvent) (n int) {
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

// endRest ends the use of Go's poller. The loop's epoll must not stay in the poller's epoll: adding a
// descriptor to a nested epoll takes a lock of the whole machine, which any program can hold for milliseconds.
func (l *Loop) endRest() {
	if l.idle != nil {
		l.idle.Close()
		l.idle, l.resting = nil, nil
	}
}
