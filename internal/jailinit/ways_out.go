package jailinit

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/netlink"
)

// A WayOut is one kind of way out of a jail, as jail init tried it.
type WayOut struct {
	Name    string `json:"name"`
	Escaped string `json:"escaped,omitempty"` // what worked; empty: nothing did
}

// tryWaysOut tries the ways out that cost next to nothing, on the thread that
// becomes the program, as restricted as that will be. None of them makes a packet,
// and none changes anything where it fails.
func tryWaysOut(p Program) []WayOut {
	var all []WayOut
	for _, a := range []struct {
		name string
		try  func(Program) string
	}{
		{"interfaces of the machine", tryInterfaces},
		{"privileges", tryPrivileges},
		{"raw sockets", tryRaw},
		{"other families of sockets", tryFamilies},
		{"changes to its network", tryNetlink},
		{"io_uring and keys", tryCalls},
		{"mounts of its own", tryMounts},
		{"the terminal's input", tryTerminal},
		{"egressd's own process", tryParent},
		{"files and sockets of the machine", tryFiles},
		{"devices of the machine", tryDevices},
	} {
		all = append(all, WayOut{a.name, a.try(p)})
	}
	if p.Packets {
		sendPackets()
	}
	return all
}

// tryInterfaces finds whatever could send a packet to anywhere.
func tryInterfaces(Program) string {
	f, err := os.Open("/proc/thread-self/net/dev")
	if err != nil {
		return "it cannot be told which there are: " + err.Error()
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, _, ok := strings.Cut(lines.Text(), ":")
		if name = strings.TrimSpace(name); ok && name != "lo" && !(name == interfaceName && isOwnInterface()) {
			return name
		}
	}
	return ""
}

func tryPrivileges(p Program) string {
	var has [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &has[0])
	if err != nil || has != p.capabilities() {
		return fmt.Sprintf("capabilities %x %v", has, err)
	}
	if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || on != 1 {
		return "programs with set-user-ID"
	}
	return ""
}

func tryRaw(Program) string {
	return firstSocket([][3]int{
		{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, {unix.AF_PACKET, unix.SOCK_DGRAM, 0}, {unix.AF_PACKET, unix.SOCK_RAW, 0},
	})
}

func tryFamilies(Program) string {
	return firstSocket([][3]int{
		{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, {unix.AF_ALG, unix.SOCK_SEQPACKET, 0}, {unix.AF_BLUETOOTH, unix.SOCK_RAW, 0}, {unix.AF_XDP, unix.SOCK_RAW, 0},
		{unix.AF_TIPC, unix.SOCK_STREAM, 0}, {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC},
		{unix.AF_INET, unix.SOCK_SEQPACKET, 0}, {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP},
	})
}

// firstSocket names the first of kinds that can be made.
func firstSocket(kinds [][3]int) string {
	for _, k := range kinds {
		if fd, err := unix.Socket(k[0], k[1]|unix.SOCK_CLOEXEC, k[2]); err == nil {
			unix.Close(fd)
			return fmt.Sprintf("socket(%d, %d, %d)", k[0], k[1], k[2])
		}
	}
	return ""
}

// tryNetlink would take the loopback interface down, which ends the jail's
// network and nothing else.
func tryNetlink(Program) string {
	head := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(head[4:], loopback)
	binary.NativeEndian.PutUint32(head[12:], unix.IFF_RUNNING) // what is to change
	var b netlink.Batch
	b.Add(unix.RTM_NEWLINK, unix.NLM_F_ACK, head)
	said, err := b.Send(unix.NETLINK_ROUTE)
	var call *os.SyscallError
	switch {
	case errors.As(err, &call) && call.Syscall != "recvfrom":
		return ""
	case err == nil:
		err = said.Of(1)
	}
	var refused unix.Errno
	switch {
	case err == nil:
		return "an interface was changed"
	case call == nil && errors.As(err, &refused):
		return ""
	}
	return err.Error()
}

func tryCalls(Program) string {
	for name, number := range map[string]uintptr{"io_uring_setup": unix.SYS_IO_URING_SETUP, "request_key": unix.SYS_REQUEST_KEY, "keyctl": unix.SYS_KEYCTL} {
		if _, _, errno := unix.RawSyscall(number, 0, 0, 0); errno != unix.ENOSYS {
			return fmt.Sprintf("%s: %v", name, errno)
		}
	}
	return ""
}

// tryMounts asks for what only a process with a single thread gets: the kernel says
// so (EINVAL) where no filter has refused it before.
func tryMounts(p Program) string {
	if p.Nested {
		return ""
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS, 0, 0); errno != unix.EPERM {
		return fmt.Sprintf("unshare: %v", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.ENOSYS {
		return fmt.Sprintf("clone3: %v", errno)
	}
	return ""
}

// tryTerminal uses no descriptor, so that a call that is let through does nothing.
func tryTerminal(Program) string {
	for _, request := range []uintptr{ttySTI, ttyLinux} {
		if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, ^uintptr(0), request, 0); errno != unix.EPERM {
			return fmt.Sprintf("ioctl(%#x): %v", request, errno)
		}
	}
	return ""
}

// tryParent looks into the process that holds the jail's sockets.
func tryParent(Program) string {
	parent := os.Getppid()
	if parent == 0 {
		return "" // it is in another PID namespace
	}
	dir := "/proc/" + strconv.Itoa(parent) + "/"
	for _, name := range []string{"mem", "environ", "ns/net", "ns/user", "fd/0"} {
		if fd, err := unix.Open(dir+name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err == nil {
			unix.Close(fd)
			return dir + name
		}
	}
	fd, err := unix.PidfdOpen(parent, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	for n := range 3 {
		if got, err := unix.PidfdGetfd(fd, n, 0); err == nil {
			unix.Close(got)
			return fmt.Sprintf("descriptor %d of egressd", n)
		}
	}
	own := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if _, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, uintptr(parent), unix.RLIMIT_LOCKS, uintptr(unsafe.Pointer(&own)), 0, 0, 0); errno == 0 {
		return "limits of egressd"
	}
	return ""
}

// tryFiles reads what is hidden, opens for writing what is fixed or covered, and removes the folders above, of which none is
// empty.
func tryFiles(p Program) string {
	for _, path := range p.Hidden {
		if found := readable(path); found != "" {
			return found
		}
	}
	for path, was := range p.hidden {
		_, holdsAgent := below(p.Agent, path)
		if was.isAt(path) || p.folders[path] && !holdsAgent && readable(path) != "" {
			return path
		}
	}
	for _, path := range p.pinned {
		if err := unix.Rmdir(path); err == nil || errors.Is(err, unix.ENOTEMPTY) {
			return path + " can be moved"
		}
	}
	closed := append([]string(nil), p.Fixed...)
	for path := range p.Covered {
		closed = append(closed, path)
	}
	for _, path := range closed {
		if info, err := os.Stat(path); err == nil && info.IsDir() && unix.Access(path, unix.W_OK) == nil {
			return path + " can be written"
		}
		if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err == nil {
			unix.Close(fd)
			return path + " can be written"
		}
	}
	return ""
}

// readable names what is left to read at a hidden path.
func readable(path string) string {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist), err != nil:
		return ""
	case info.IsDir():
		entries, err := os.ReadDir(path)
		if err == nil && len(entries) > 0 && !onlyOurs(path) {
			return path + "/" + entries[0].Name()
		}
		return ""
	case isNull(info):
		return ""
	}
	return path
}

// isNull reports whether a file is what is put in the place of hidden ones.
func isNull(info os.FileInfo) bool {
	file, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&os.ModeCharDevice != 0 && file.Rdev == unix.Mkdev(1, 3)
}

// onlyOurs reports whether a folder is the one that the files of covered paths
// were made in.
func onlyOurs(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Flags&unix.ST_RDONLY != 0 && fs.Flags&unix.ST_NOEXEC != 0
}

// Addresses for documentation (RFC 5737, RFC 3849), so that what is sent there by
// mistake arrives nowhere, and the port of them that a jail sends to by itself: where
// Program.Packets is set.
var (
	Attempted4 = [4]byte{192, 0, 2, 1}
	Attempted6 = [16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}
)

const AttemptedPort = 443

// sendPackets begins connections and sends datagrams, whose arrival is for the
// other end to see. The sockets stay open until the thread's process ends.
func sendPackets() {
	for family, address := range map[int]unix.Sockaddr{
		unix.AF_INET:  &unix.SockaddrInet4{Port: AttemptedPort, Addr: Attempted4},
		unix.AF_INET6: &unix.SockaddrInet6{Port: AttemptedPort, Addr: Attempted6},
	} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err == nil && unix.Connect(fd, address) == nil && kind == unix.SOCK_DGRAM {
				_, _ = unix.Write(fd, []byte("x"))
			}
		}
	}
}
