package jailinit

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// A call is what a filter is asked about.
type call struct {
	arch, number uint32
	args         [6]uint64
}

// decide runs the filter as the kernel does, on the instructions that it has.
func decide(t *testing.T, f []unix.SockFilter, c call) uint32 {
	t.Helper()
	data := binary.LittleEndian.AppendUint32(nil, c.number)
	data = binary.LittleEndian.AppendUint32(data, c.arch)
	data = append(data, make([]byte, 8)...)
	for _, a := range c.args {
		data = binary.LittleEndian.AppendUint64(data, a)
	}
	var a uint32
	for at := 0; at < len(f); at++ {
		i := f[at]
		skip := int(i.Jf)
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.LittleEndian.Uint32(data[i.K:])
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= i.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JEQ:
			if a == i.K {
				skip = int(i.Jt)
			}
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JSET:
			if a&i.K != 0 {
				skip = int(i.Jt)
			}
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JGE:
			if a >= i.K {
				skip = int(i.Jt)
			}
		case unix.BPF_JMP | unix.BPF_K | unix.BPF_JGT:
			if a > i.K {
				skip = int(i.Jt)
			}
		default:
			t.Fatalf("instruction %d is %+v", at, i)
		}
		at += skip
	}
	t.Fatal("the filter has no end")
	return 0
}

// TestTheFilterOfSystemCalls asks about calls of every ABI of a processor.
func TestTheFilterOfSystemCalls(t *testing.T) {
	const allowed = unix.SECCOMP_RET_ALLOW
	fails := func(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }
	socket := func(args ...uint64) (six [6]uint64) { copy(six[:], args); return six }
	for _, arch := range []string{"amd64", "arm64"} {
		abis := abisOf(arch)
		f := callFilter(abis, false)
		if len(f) > 255*len(abis) {
			t.Fatalf("%d instructions", len(f))
		}
		for _, a := range abis {
			for _, row := range []struct {
				says string
				c    call
				want uint32
			}{
				{"TCP", call{a.arch, a.socket, socket(2, 1, 0)}, allowed},
				{"IPv6", call{a.arch, a.socket, socket(10, 2, 17)}, allowed},
				{"TCP, closed on execve", call{a.arch, a.socket, socket(2, 1|0x80800, 6)}, allowed},
				{"TCP by several paths", call{a.arch, a.socket, socket(2, 1, 262)}, allowed},
				{"SCTP", call{a.arch, a.socket, socket(2, 1, 132)}, fails(unix.EPROTONOSUPPORT)},
				{"SCTP, as the first of its type", call{a.arch, a.socket, socket(10, 5|0x80000, 0)}, fails(unix.ESOCKTNOSUPPORT)},
				{"DCCP, as the first of its type", call{a.arch, a.socket, socket(2, 6, 0)}, fails(unix.ESOCKTNOSUPPORT)},
				{"no type", call{a.arch, a.socket, socket(2, 0, 0)}, fails(unix.ESOCKTNOSUPPORT)},
				{"UDP-Lite", call{a.arch, a.socket, socket(10, 2, 136)}, fails(unix.EPROTONOSUPPORT)},
				{"GRE", call{a.arch, a.socket, socket(2, 3, 47)}, fails(unix.EPROTONOSUPPORT)},
				{"ICMP", call{a.arch, a.socket, socket(2, 2, 1)}, allowed},
				{"a key", call{a.arch, a.addKey, socket()}, fails(unix.ENOSYS)},
				{"asking for a key", call{a.arch, a.addKey + 1, socket()}, fails(unix.ENOSYS)},
				{"keyctl", call{a.arch, a.addKey + 2, socket()}, fails(unix.ENOSYS)},
				{"its own limits", call{a.arch, a.prlimit, socket(0, 7, 0x7fff0000, 0)}, allowed},
				{"another's limits", call{a.arch, a.prlimit, socket(42, 7, 0x7fff0000, 0)}, fails(unix.EPERM)},
				{"another's limits, from a round address", call{a.arch, a.prlimit, socket(42, 7, 1<<32, 0)}, fails(unix.EPERM)},
				{"reading another's limits", call{a.arch, a.prlimit, socket(42, 7, 0, 0x7fff0000)}, allowed},
				{"the priority of its own", call{a.arch, a.setpriority, socket(0, 0, 5)}, allowed},
				{"the priority of its group", call{a.arch, a.setpriority, socket(1, 0, 5)}, fails(unix.EPERM)},
				{"the priority of its group, in half a word", call{a.arch, a.setpriority, socket(1|1<<32, 1<<32, 5)}, fails(unix.EPERM)},
				{"the priority of a group of its own", call{a.arch, a.setpriority, socket(1, 42, 5)}, allowed},
				{"the disk's priority of its group", call{a.arch, a.ioprioSet, socket(2, 0, 0)}, fails(unix.EPERM)},
				{"the disk's priority of a process", call{a.arch, a.ioprioSet, socket(1, 0, 0)}, allowed},
				{"Unix", call{a.arch, a.socket, socket(1, 1)}, allowed},
				{"asking about routes", call{a.arch, a.socket, socket(16, 3, 0)}, allowed},
				{"asking about sockets", call{a.arch, a.socket, socket(16, 3, 4)}, allowed},
				{"packet filters", call{a.arch, a.socket, socket(16, 3, 12)}, fails(unix.EPROTONOSUPPORT)},
				{"virtual machines", call{a.arch, a.socket, socket(40, 1)}, fails(unix.EAFNOSUPPORT)},
				{"virtual machines, in half a word", call{a.arch, a.socket, socket(40|1<<32, 1)}, fails(unix.EAFNOSUPPORT)},
				{"ciphers", call{a.arch, a.socket, socket(38, 5)}, fails(unix.EAFNOSUPPORT)},
				{"packets", call{a.arch, a.socket, socket(17, 3)}, fails(unix.EAFNOSUPPORT)},
				{"a family to come", call{a.arch, a.socket, socket(99, 1)}, fails(unix.EAFNOSUPPORT)},
				{"no family", call{a.arch, a.socket, socket(0, 1)}, fails(unix.EAFNOSUPPORT)},
				{"typing into a terminal", call{a.arch, a.ioctl, socket(0, 0x5412)}, fails(unix.EPERM)},
				{"typing, in half a word", call{a.arch, a.ioctl, socket(0, 0x5412|7<<32)}, fails(unix.EPERM)},
				{"pasting into a terminal", call{a.arch, a.ioctl, socket(0, 0x541c)}, fails(unix.EPERM)},
				{"the size of a terminal", call{a.arch, a.ioctl, socket(0, 0x5413)}, allowed},
				{"io_uring_setup", call{a.arch, 425, socket()}, fails(unix.ENOSYS)},
				{"io_uring_enter", call{a.arch, 426, socket()}, fails(unix.ENOSYS)},
				{"io_uring_register", call{a.arch, 427, socket()}, fails(unix.ENOSYS)},
				{"a thread", call{a.arch, a.clone, socket(0x3d0f00)}, allowed},
				{"a process in a user namespace", call{a.arch, a.clone, socket(0x10000011)}, allowed},
				{"a process with mounts of its own", call{a.arch, a.clone, socket(0x10020011)}, fails(unix.EPERM)},
				{"a process with who knows what", call{a.arch, 435, socket(0x7fff0000, 88)}, fails(unix.ENOSYS)},
				{"a user namespace", call{a.arch, a.unshare, socket(0x10000000)}, allowed},
				{"mounts of its own", call{a.arch, a.unshare, socket(0x00020000)}, fails(unix.EPERM)},
				{"mounts of its own, in a user namespace", call{a.arch, a.unshare, socket(0x10020000)}, fails(unix.EPERM)},
				{"no mounts at all", call{a.arch, a.unshare, socket(0x10100000)}, fails(unix.EPERM)},
				{"a tree of mounts", call{a.arch, 428, socket()}, fails(unix.ENOSYS)},
				{"a mount that is nowhere", call{a.arch, 432, socket()}, fails(unix.ENOSYS)},
				{"a tree of mounts, with attributes", call{a.arch, 467, socket()}, fails(unix.ENOSYS)},
				{"write", call{a.arch, 1, socket()}, allowed},
				{"another processor", call{0x1234, a.socket, socket(2, 1)}, fails(unix.ENOSYS)},
			} {
				if got := decide(t, f, row.c); got != row.want {
					t.Errorf("%s, %#x, %s: %#x, want %#x", arch, a.arch, row.says, got, row.want)
				}
			}
			if got := decide(t, callFilter(abis, true), call{a.arch, a.unshare, socket(0x10020000)}); got != allowed {
				t.Errorf("%s: mounts of a nested sandbox: %#x", arch, got)
			}
			if a.socketcall != 0 {
				if got := decide(t, f, call{a.arch, a.socketcall, socket(1, 0x1000)}); got != fails(unix.ENOSYS) {
					t.Errorf("%s: socketcall: %#x", arch, got)
				}
			}
			if a.foreign != 0 {
				if got := decide(t, f, call{a.arch, a.foreign | a.socket, socket(40, 1)}); got != fails(unix.ENOSYS) {
					t.Errorf("%s: a call of a foreign ABI: %#x", arch, got)
				}
			}
		}
	}
	if abisOf("mips") != nil {
		t.Error("there is a filter for what nobody has looked at")
	}
}
