package proxy

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"
)

// keepAliveIdle is how long a client is silent, in seconds, before the kernel asks whether it is still there, and how often it
// asks.
const keepAliveIdle = 30

func setInherited(fd int) {
	const notSentLowat = 25 // TCP_NOTSENT_LOWAT
	syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, notSentLowat, unsentMost)
	syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, keepAliveIdle)
	syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, keepAliveIdle)
}

// accept takes one connection off the queue of fd, without waiting.
func accept(fd int) (int, error) {
	client, _, err := syscall.Accept4(fd, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	return client, err
}

// userOf returns the user and the process that connected to a Unix socket.
func userOf(fd int) (uid uint32, pid int, err error) {
	who, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil {
		return 0, 0, err
	}
	return who.Uid, int(who.Pid), nil
}

// backlogOf returns how many connections wait at a listener, or -1 where the system does
// not tell, as for what is not TCP.
func backlogOf(fd int) int64 {
	var info syscall.TCPInfo
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || info.State != tcpListen {
		return -1
	}
	return int64(info.Unacked) // of a listener: the length of its queue
}

// tcpListen is the state of a listener, by tcp_states.h.
const tcpListen = 10

// OriginalNAT is the [Original] of connections that nftables has redirected. It
// asks conntrack, by the number that SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST
// share.
func OriginalNAT(fd int) (netip.AddrPort, error) {
	const originalDst = 80
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	level := uintptr(syscall.SOL_IP)
	if _, six := sa.(*syscall.SockaddrInet6); six {
		level = syscall.SOL_IPV6
	}
	var raw [syscall.SizeofSockaddrInet6]byte
	size := uint32(len(raw))
	_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), level, originalDst, uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return netip.AddrPort{}, errno
	}
	return originalFrom(raw[:size])
}

// originalFrom reads a struct sockaddr_in or sockaddr_in6.
func originalFrom(raw []byte) (netip.AddrPort, error) {
	if len(raw) < syscall.SizeofSockaddrInet4 {
		return netip.AddrPort{}, errOriginal
	}
	port := binary.BigEndian.Uint16(raw[2:])
	switch family := binary.NativeEndian.Uint16(raw); {
	case family == syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), nil
	case family == syscall.AF_INET6 && len(raw) >= 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])).Unmap(), port), nil
	}
	return netip.AddrPort{}, errOriginal
}
