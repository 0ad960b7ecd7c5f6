package jailinit

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An abi is one way in which a processor's programs call the kernel.
type abi struct {
	arch         uint32 // AUDIT_ARCH_…
	socket       uint32
	socketcall   uint32 // 0 where there is none
	ioctl        uint32
	ioUringSetup uint32 // with io_uring_enter and io_uring_register behind it
	addKey       uint32 // with request_key and keyctl behind it
	prlimit      uint32 // prlimit64
	clone        uint32
	unshare      uint32
	setpriority  uint32
	ioprioSet    uint32
	foreign      uint32 // numbers from here on are those of another ABI; 0: none are
}

// abisOf are those of one architecture: what is not listed makes no calls.
func abisOf(arch string) []abi {
	switch arch {
	case "amd64":
		return []abi{
			{arch: unix.AUDIT_ARCH_X86_64, socket: 41, ioctl: 16, ioUringSetup: 425, addKey: 248, prlimit: 302, clone: 56, unshare: 272, setpriority: 141, ioprioSet: 251, foreign: 0x40000000}, // x32
			{arch: unix.AUDIT_ARCH_I386, socket: 359, socketcall: 102, ioctl: 54, ioUringSetup: 425, addKey: 286, prlimit: 340, clone: 120, unshare: 310, setpriority: 97, ioprioSet: 289},
		}
	case "arm64":
		return []abi{
			{arch: unix.AUDIT_ARCH_AARCH64, socket: 198, ioctl: 29, ioUringSetup: 425, addKey: 217, prlimit: 261, clone: 220, unshare: 97, setpriority: 140, ioprioSet: 30},
			{arch: unix.AUDIT_ARCH_ARM, socket: 281, socketcall: 102, ioctl: 54, ioUringSetup: 425, addKey: 309, prlimit: 369, clone: 120, unshare: 337, setpriority: 97, ioprioSet: 314},
		}
	}
	return nil
}

// FilterCalls has the kernel refuse, from now on, what reaches past a network
// namespace. Of sockets those of the Internet and of Unix are left, and what
// programs ask about their network by; virtual machines' (AF_VSOCK), the kernel's
// ciphers (AF_ALG) and all others are not. io_uring could make any of them unseen.
// TIOCSTI and TIOCLINUX would type into the terminal that egressd was started in.
// Keys are asked for outside of every namespace: request_key(2) has the host's root
// resolve names. prlimit(2) would set egressd's limits, and setpriority(2) its priority: both have
// the same user and process group.
//
// Unless nested is set there are no further mount namespaces: see mountCalls.
func FilterCalls(nested bool) error {
	abis := abisOf(runtime.GOARCH)
	if abis == nil {
		return fmt.Errorf("there is none for %s", runtime.GOARCH)
	}
	program := callFilter(abis, nested)
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&f)), 0, 0)
}

// Offsets in struct seccomp_data. The filter reads the lower half of an argument: all that it
// looks at have 32 bits.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

const (
	ttySTI   = 0x5412
	ttyLinux = 0x541c
)

// callFilter is the program in classic BPF.
func callFilter(abis []abi, nested bool) []unix.SockFilter {
	f := filterText{load(offsetArch)}
	for _, a := range abis {
		body := a.body(nested)
		f = append(f, jump(unix.BPF_JEQ, a.arch, 0, uint8(len(body))))
		f = append(f, body...)
	}
	return append(f, fails(unix.ENOSYS))
}

type filterText []unix.SockFilter

// body decides a call of one ABI. Every way through it returns.
func (a abi) body(nested bool) filterText {
	f := filterText{load(offsetNumber)}
	if a.foreign != 0 {
		f = append(f, jump(unix.BPF_JGE, a.foreign, 0, 1), fails(unix.ENOSYS))
	}
	if a.socketcall != 0 {
		f = append(f, jump(unix.BPF_JEQ, a.socketcall, 0, 1), fails(unix.ENOSYS))
	}
	for n := range uint32(3) {
		f = append(f, jump(unix.BPF_JEQ, a.ioUringSetup+n, 0, 1), fails(unix.ENOSYS))
		f = append(f, jump(unix.BPF_JEQ, a.addKey+n, 0, 1), fails(unix.ENOSYS))
	}
	f = f.call(a.socket, socketBody())
	f = f.call(a.ioctl, terminalBody())
	f = f.call(a.prlimit, limitBody())
	f = f.call(a.setpriority, ownGroupBody(unix.PRIO_PGRP))
	f = f.call(a.ioprioSet, ownGroupBody(ioprioGroup))
	if !nested {
		f = a.mountCalls(f)
	}
	return append(f, passes())
}

// Of linux/sched.h: an empty mount namespace, which kernels to come can make.
const unshareEmptyMounts = 1 << 20

// mountCalls keeps the program in its mount namespace. In a user and a mount namespace of its own, the program
// could detach every mount, and rename and remove files in folders that it holds open: that ends the mounts
// that fix and hide these files elsewhere. The flags of clone3(2) are in memory, where a filter cannot read
// them; programs fall back to clone(2). Detached trees of mounts could become such a namespace.
func (a abi) mountCalls(f filterText) filterText {
	f = f.call(a.unshare, withoutFlags(unix.CLONE_NEWNS|unshareEmptyMounts))
	f = f.call(a.clone, withoutFlags(unix.CLONE_NEWNS))
	for _, n := range []uint32{clone3, openTree, fsmount, openTreeAttr} {
		f = f.call(n, filterText{fails(unix.ENOSYS)})
	}
	return f
}

// Calls that have the same number in every ABI.
const (
	openTree     = 428
	fsmount      = 432
	clone3       = 435
	openTreeAttr = 467
)

// withoutFlags refuses where the first argument has any of flags.
func withoutFlags(flags uint32) filterText {
	return filterText{load(offsetArgs), jump(unix.BPF_JSET, flags, 0, 1), fails(unix.EPERM), passes()}
}

// call has one call decided by body, through which every way returns.
func (f filterText) call(number uint32, body filterText) filterText {
	return append(append(f, jump(unix.BPF_JEQ, number, 0, uint8(len(body)))), body...)
}

func socketBody() filterText {
	netlink, internet := netlinkBody(), internetBody()
	f := filterText{load(offsetArgs), jump(unix.BPF_JEQ, unix.AF_UNIX, 0, 1), passes()}
	f = f.call(unix.AF_NETLINK, netlink)
	f = append(f, jump(unix.BPF_JEQ, unix.AF_INET, 2, 0), jump(unix.BPF_JEQ, unix.AF_INET6, 1, 0), fails(unix.EAFNOSUPPORT))
	return append(f, internet...)
}

func netlinkBody() filterText {
	return filterText{load(offsetArgs + 2*8)}.only(unix.EPROTONOSUPPORT, unix.NETLINK_ROUTE, unix.NETLINK_SOCK_DIAG, unix.NETLINK_KOBJECT_UEVENT)
}

// internetBody allows the captured transports, and raw sockets as far as the kernel refuses them by itself.
// Protocol 0 stands for the first protocol of a type, which could be SCTP or DCCP, so the filter checks the
// type, too.
func internetBody() filterText {
	const kinds = 0xf // the rest of the type are flags
	f := filterText{load(offsetArgs + 8), {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: kinds}}
	f = append(f, jump(unix.BPF_JGE, unix.SOCK_STREAM, 0, 1), jump(unix.BPF_JGT, unix.SOCK_RAW, 0, 1), fails(unix.ESOCKTNOSUPPORT), load(offsetArgs+2*8))
	return f.only(unix.EPROTONOSUPPORT, unix.IPPROTO_IP, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6, unix.IPPROTO_MPTCP)
}

// only passes what was loaded last where it is one of values.
func (f filterText) only(errno unix.Errno, values ...uint32) filterText {
	for _, v := range values {
		f = append(f, jump(unix.BPF_JEQ, v, 0, 1), passes())
	}
	return append(f, fails(errno))
}

// limitBody lets a process set its own limits, and read those of others.
func limitBody() filterText {
	return filterText{
		load(offsetArgs), jump(unix.BPF_JEQ, 0, 0, 1), passes(),
		load(offsetArgs + 2*8), jump(unix.BPF_JEQ, 0, 0, 2),
		load(offsetArgs + 2*8 + 4), jump(unix.BPF_JEQ, 0, 1, 0), fails(unix.EPERM),
		passes(),
	}
}

const ioprioGroup = 2 // IOPRIO_WHO_PGRP of linux/ioprio.h

// ownGroupBody refuses calls for the caller's own process group: it has processes outside,
// egressd among them. Other groups are known by a pid, which is one of the jail's.
func ownGroupBody(group uint32) filterText {
	return filterText{
		load(offsetArgs), jump(unix.BPF_JEQ, group, 1, 0), passes(),
		load(offsetArgs + 8), jump(unix.BPF_JEQ, 0, 0, 1), fails(unix.EPERM),
		passes(),
	}
}

func terminalBody() filterText {
	f := filterText{load(offsetArgs + 8)}
	for _, request := range []uint32{ttySTI, ttyLinux} {
		f = append(f, jump(unix.BPF_JEQ, request, 0, 1), fails(unix.EPERM))
	}
	return append(f, passes())
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// jump skips yes instructions where the comparison holds, else no.
func jump(compare uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | compare, Jt: yes, Jf: no, K: k}
}

func passes() unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
}

func fails(errno unix.Errno) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}
