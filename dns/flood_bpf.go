//go:build linux

package dns

import (
	"encoding/binary"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ignore has the kernel drop what comes from these addresses. An error leaves the socket as it is: then
// egressd drops the same datagrams itself.
func ignore(c *net.UDPConn, from []netip.Addr) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if len(from) == 0 {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
			return
		}
		program := ignoring(from)
		_ = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: unsafe.SliceData(program)})
	})
}

// ignoring is a program in classic BPF that drops datagrams from addresses as sourceOf returns them.
func ignoring(from []netip.Addr) []unix.SockFilter {
	const (
		header  = 1<<32 - 0x100000 // of IP: SKF_NET_OFF of linux/filter.h
		source4 = header + 12
		source6 = header + 8
		version = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		word    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equals  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	)
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	pass := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1}
	v4, v6 := []unix.SockFilter{{Code: word, K: source4}}, []unix.SockFilter(nil)
	for _, a := range from {
		b := a.AsSlice()
		if a.Is4() {
			v4 = append(v4, unix.SockFilter{Code: equals, K: binary.BigEndian.Uint32(b), Jf: 1}, drop)
			continue
		}
		v6 = append(v6, unix.SockFilter{Code: word, K: source6}, unix.SockFilter{Code: equals, K: binary.BigEndian.Uint32(b), Jf: 3},
			unix.SockFilter{Code: word, K: source6 + 4}, unix.SockFilter{Code: equals, K: binary.BigEndian.Uint32(b[4:]), Jf: 1}, drop)
	}
	v4, v6 = append(v4, pass), append(v6, pass)
	program := []unix.SockFilter{
		{Code: version, K: header},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xf0},
		{Code: equals, K: 0x40, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(v4))},
	}
	return append(append(program, v4...), v6...)
}
