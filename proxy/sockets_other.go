//go:build !linux

package proxy

import (
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// setInherited does nothing: the kernel's own bounds hold.
func setInherited(int) {}

// accept takes one connection off the queue of fd, without waiting.
func accept(fd int) (int, error) {
	syscall.ForkLock.RLock()
	client, _, err := syscall.Accept(fd)
	if err == nil {
		syscall.CloseOnExec(client)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return -1, err
	}
	if err := syscall.SetNonblock(client, true); err != nil {
		syscall.Close(client)
		return -1, err
	}
	return client, nil
}

// userOf returns the user that connected to a Unix socket. The process stays unknown.
func userOf(fd int) (uid uint32, pid int, err error) {
	who, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return 0, 0, err
	}
	return who.Uid, 0, nil
}

// backlogOf returns -1: the system does not tell how many connections wait.
func backlogOf(int) int64 { return -1 }

// OriginalNAT is the [Original] of connections that a packet filter has redirected, which Linux alone tells.
func OriginalNAT(int) (netip.AddrPort, error) { return netip.AddrPort{}, errOriginal }
