package hostaddr

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// A source is a socket of rtnetlink(7).
type source = *os.File

// Groups of rtnetlink(7) that tell of addresses that come and go.
const (
	groupLink = 0x1
	groupIPv4 = 0x10
	groupIPv6 = 0x100
)

// Watch reads the addresses and keeps following them until Close. From the
// kernel's word of a change until Addrs tells it there are microseconds.
func Watch() (*Watcher, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, syscall.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	w := &Watcher{source: os.NewFile(uintptr(fd), "rtnetlink"), stop: make(chan struct{}), done: make(chan struct{})}
	var raw syscall.RawConn
	err = syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK, Groups: groupLink | groupIPv4 | groupIPv6})
	if err == nil {
		raw, err = w.source.SyscallConn()
	}
	if err == nil {
		err = w.source.SetReadDeadline(time.Time{}) // which fails where the poller has not taken it
	}
	if err == nil {
		err = w.read()
	}
	if err != nil {
		w.source.Close()
		return nil, fmt.Errorf("host addresses: %w", err)
	}
	go w.follow(raw)
	return w, nil
}

// readAgain is when a list that could not be read is tried again.
const readAgain = time.Second

// follow reads the list anew whenever the kernel says that something changed.
// It ignores the contents of messages, because some may have been lost.
func (w *Watcher) follow(raw syscall.RawConn) {
	defer close(w.done)
	for {
		var failed error
		err := raw.Read(func(fd uintptr) (some bool) {
			some, failed = drain(fd)
			return some || failed != nil
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		var pause time.Duration
		if errors.Join(err, failed) != nil { // it says nothing any more: the list is read now and then
			pause = readAgain
		}
		select {
		case <-w.stop:
			return
		case <-time.After(pause):
		}
		var again time.Time
		if w.read() != nil {
			again = time.Now().Add(readAgain)
		}
		_ = w.source.SetReadDeadline(again)
	}
}

// drain takes what is there, and reports whether there was anything.
func drain(fd uintptr) (some bool, err error) {
	buf := make([]byte, 8<<10)
	for {
		switch _, _, err := syscall.Recvfrom(int(fd), buf, 0); err {
		case nil, syscall.ENOBUFS:
			some = true
		case syscall.EINTR:
		case syscall.EAGAIN:
			return some, nil
		default:
			return some, err
		}
	}
}
