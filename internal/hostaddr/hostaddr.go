// Package hostaddr follows the addresses of this host as they change, so that
// "the host itself" means what it means now and not what it meant at start.
//
//	w, err := hostaddr.Watch()
//	defer w.Close()
//	addrs := w.Addrs()
package hostaddr

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
)

// A Watcher holds the host's unicast addresses. It is safe for concurrent use.
type Watcher struct {
	addrs atomic.Pointer[[]netip.Addr]
	fd    int
	epoll int
	stop  [2]int // a pipe whose closing ends the wait
	done  chan struct{}
}

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
	w := &Watcher{fd: fd, epoll: -1, stop: [2]int{-1, -1}, done: make(chan struct{})}
	err = syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK, Groups: groupLink | groupIPv4 | groupIPv6})
	if err == nil {
		err = syscall.Pipe2(w.stop[:], syscall.O_CLOEXEC)
	}
	if err == nil {
		err = w.prepare()
	}
	if err == nil {
		err = w.read()
	}
	if err != nil {
		w.release()
		return nil, fmt.Errorf("host addresses: %w", err)
	}
	go w.follow()
	return w, nil
}

// Addrs returns the addresses, sorted. The slice must not be changed.
func (w *Watcher) Addrs() []netip.Addr { return *w.addrs.Load() }

// Close stops following.
func (w *Watcher) Close() {
	syscall.Close(w.stop[1])
	w.stop[1] = -1
	<-w.done
	w.release()
}

func (w *Watcher) release() {
	for _, fd := range []int{w.fd, w.epoll, w.stop[0], w.stop[1]} {
		if fd >= 0 {
			syscall.Close(fd)
		}
	}
}

func (w *Watcher) prepare() (err error) {
	if w.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for _, fd := range []int{w.fd, w.stop[0]} {
		ev := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLHUP, Fd: int32(fd)}
		if err := syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_ADD, fd, &ev); err != nil {
			return err
		}
	}
	return nil
}

func (w *Watcher) read() error {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	addrs := make([]netip.Addr, 0, len(found))
	for _, a := range found {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	w.addrs.Store(&addrs)
	return nil
}

// readAgain is when a list that could not be read is tried again, in
// milliseconds.
const readAgain = 1000

// follow reads the list anew whenever the kernel says that something changed.
// What it says is not looked at: a message may have been lost.
func (w *Watcher) follow() {
	defer close(w.done)
	events := make([]syscall.EpollEvent, 2)
	wait := -1
	for {
		n, err := syscall.EpollWait(w.epoll, events, wait)
		if err != nil && err != syscall.EINTR {
			return
		}
		for _, ev := range events[:max(n, 0)] {
			if int(ev.Fd) == w.stop[0] {
				return
			}
		}
		w.drain()
		wait = -1
		if w.read() != nil {
			wait = readAgain
		}
	}
}

func (w *Watcher) drain() {
	buf := make([]byte, 8<<10)
	for {
		if _, _, err := syscall.Recvfrom(w.fd, buf, 0); err != nil && err != syscall.ENOBUFS {
			return
		}
	}
}
