package proxy

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"unsafe"
)

var errOriginal = errors.New("it is not known where the connection was going")

// OriginalLocal is the [Original] of connections that tproxy has taken: their own
// end has the address that they were going to.
func OriginalLocal(fd int) (netip.AddrPort, error) {
	sa, err := syscall.Getsockname(fd)
	to := addrPort(sa)
	if err == nil && !to.IsValid() {
		err = errOriginal
	}
	return to, err
}

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

// boundTo is the address that a listener has, or the zero AddrPort.
func boundTo(l net.Listener) netip.AddrPort {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := a.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
