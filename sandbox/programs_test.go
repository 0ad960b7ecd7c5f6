//go:build linux

package sandbox

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// ownPrograms are those of the network that the test is in.
func ownPrograms(t *testing.T) *Programs {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPrograms(fd, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p.patience = time.Minute
	t.Cleanup(func() { p.Close() })
	return p
}

// connection is one between two sockets of the test.
func connection(t *testing.T, network, listen string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen(network, listen)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func ends(c net.Conn) (local, far netip.AddrPort) {
	plain := func(a net.Addr) netip.AddrPort {
		p := a.(*net.TCPAddr).AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	return plain(c.LocalAddr()), plain(c.RemoteAddr())
}

func isTest(p *policy.Process) bool {
	exe, _ := os.Executable()
	return p != nil && p.PID == os.Getpid() && p.Exe == exe && len(p.Argv) > 0 && filepath.Base(p.Argv[0]) == filepath.Base(os.Args[0])
}

func TestTheProgramOfAConnectionIsFound(t *testing.T) {
	p := ownPrograms(t)
	for _, listen := range []string{"127.0.0.1:0", "[::1]:0"} {
		client, server := connection(t, "tcp", listen)
		for range 2 { // the second time from memory
			from, to := ends(client)
			if got := p.Connected(from, to); !isTest(got) {
				t.Errorf("%s: found %+v", listen, got)
			}
			if got := p.Connected(to, from); !isTest(got) {
				t.Errorf("%s, the other end: found %+v", listen, got)
			}
		}
		from, to := ends(client)
		if got := p.Connected(from, netip.AddrPortFrom(to.Addr(), to.Port()^1)); got != nil {
			t.Errorf("%s: found %+v for a connection that is none", listen, got)
		}
		client.(*net.TCPConn).SetLinger(0)
		client.Close()
		server.Close()
		if got := p.Connected(from, to); got != nil {
			t.Errorf("%s: found %+v after its end", listen, got)
		}
	}
}

// TestASocketForBothIsFound has one of IPv6 connect to IPv4.
func TestASocketForBothIsFound(t *testing.T) {
	p := ownPrograms(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	to := l.Addr().(*net.TCPAddr).AddrPort()
	if err := unix.Connect(fd, &unix.SockaddrInet6{Port: int(to.Port()), Addr: netip.MustParseAddr("::ffff:127.0.0.1").As16()}); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	to, from := ends(c)
	if got := p.Connected(from, to); !isTest(got) {
		t.Errorf("found %+v", got)
	}
}

// TestAListenerIsNoConnection asks for a connection at whose port one listens.
func TestAListenerIsNoConnection(t *testing.T) {
	p := ownPrograms(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := p.Connected(l.Addr().(*net.TCPAddr).AddrPort(), netip.MustParseAddrPort("127.0.0.1:1")); got != nil {
		t.Errorf("found %+v", got)
	}
}

func TestTheProgramOfADatagramIsFound(t *testing.T) {
	p := ownPrograms(t)
	for _, row := range []struct{ network, listen, from string }{
		{"udp4", "127.0.0.1:0", "127.0.0.1"}, {"udp4", "0.0.0.0:0", "127.0.0.1"}, {"udp", "[::]:0", "127.0.0.1"}, {"udp6", "[::1]:0", "::1"},
	} {
		c, err := net.ListenPacket(row.network, row.listen)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		from := netip.AddrPortFrom(netip.MustParseAddr(row.from), c.LocalAddr().(*net.UDPAddr).AddrPort().Port())
		if got := p.Sent(from); !isTest(got) {
			t.Errorf("%s: found %+v", row.listen, got)
		}
		c.Close()
		if got := p.Sent(from); got != nil {
			t.Errorf("%s: found %+v after its end", row.listen, got)
		}
	}
}

// TestTwoThatMayHaveSentAreNone has two sockets for the same datagrams.
func TestTwoThatMayHaveSentAreNone(t *testing.T) {
	p := ownPrograms(t)
	var port int
	for range 2 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		at, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		port = at.(*unix.SockaddrInet4).Port
	}
	if got := p.Sent(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))); got != nil {
		t.Errorf("found %+v", got)
	}
}

// TestAnotherProcessIsFound gives the only descriptor of a connection away.
func TestAnotherProcessIsFound(t *testing.T) {
	if !inNetworkOfItsOwn(t) {
		return
	}
	p := ownPrograms(t)
	client, _ := connection(t, "tcp", "127.0.0.1:0")
	from, to := ends(client)
	if got := p.Connected(from, to); !isTest(got) { // now remembered
		t.Fatalf("found %+v", got)
	}
	f, err := client.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("yes", "up") // until nobody reads
	child.Stdin = f
	up, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { child.Process.Kill(); child.Wait() }()
	f.Close()
	client.Close()
	if _, err := up.Read(make([]byte, 1)); err != nil { // Start returns before the kernel has noted the arguments
		t.Fatal(err)
	}
	got := p.Connected(from, to)
	if got == nil || got.PID != child.Process.Pid || filepath.Base(got.Exe) == "" || !slices.Equal(got.Argv, child.Args) {
		t.Errorf("found %+v, want the process %d", got, child.Process.Pid)
	}
}

// inNetworkOfItsOwn has the test run once more, by itself and in a network of its own, and
// reports whether that is what runs: who shares a test's network may have more sockets than are looked at.
func inNetworkOfItsOwn(t *testing.T) bool {
	t.Helper()
	const inside = "EGRESSD_TEST_NETWORK"
	if os.Getenv(inside) == t.Name() {
		raiseLoopback(t)
		return true
	}
	test := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	test.Env = append(os.Environ(), inside+"="+t.Name())
	test.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		test.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		test.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		test.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := test.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a network of its own: %v\n%s", err, out)
	}
	return false
}

func raiseLoopback(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	up, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	up.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		t.Fatal(err)
	}
}

// TestDescendantsAreFound has a child of a child.
func TestDescendantsAreFound(t *testing.T) {
	child := exec.Command("sh", "-c", "sleep 60 & echo $!; wait")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var grandchild int
	if _, err := fmt.Fscan(out, &grandchild); err != nil {
		t.Fatal(err)
	}
	defer func() { syscall.Kill(grandchild, syscall.SIGKILL); child.Process.Kill(); child.Wait() }()
	soon := time.Now().Add(time.Minute)
	all := descendants(os.Getpid(), &effort{soon, processesMost, 0})
	for _, pid := range []int{os.Getpid(), child.Process.Pid, grandchild} {
		if !slices.Contains(all, pid) {
			t.Errorf("%d is not among %v", pid, all)
		}
	}
	if all := descendants(os.Getpid(), &effort{soon, 1, 0}); len(all) != 1 {
		t.Errorf("with little left they are %v", all)
	}
	if all := descendants(1<<30, &effort{soon, processesMost, 0}); len(all) != 1 {
		t.Errorf("nobody has %v", all)
	}
}

// TestProcessesOfOtherNetworksAreNotLookedAt looks for what another network has.
func TestProcessesOfOtherNetworksAreNotLookedAt(t *testing.T) {
	p := ownPrograms(t)
	p.network = "net:[1]"
	client, _ := connection(t, "tcp", "127.0.0.1:0")
	if got := p.Connected(ends(client)); got != nil {
		t.Errorf("found %+v", got)
	}
	var none *Programs
	if none.Connected(ends(client)) != nil || none.Sent(netip.AddrPort{}) != nil || none.Close() != nil {
		t.Error("nobody found something")
	}
	p.Close()
	if got := p.Connected(ends(client)); got != nil {
		t.Errorf("found %+v after Close", got)
	}
}

// TestTheEffortIsBounded looks where there is more than is looked at.
func TestTheEffortIsBounded(t *testing.T) {
	p := ownPrograms(t)
	client, _ := connection(t, "tcp", "127.0.0.1:0")
	from, to := ends(client)
	inode := p.diag.connected(from, to)
	soon := time.Now().Add(time.Minute)
	for says, left := range map[string]*effort{
		"no time": {time.Now().Add(-time.Second), processesMost, descriptorsMost}, "no process": {soon, 0, descriptorsMost}, "no descriptor": {soon, processesMost, 0},
	} {
		if pid, _ := p.among([]int{os.Getpid()}, inode, left); pid != 0 {
			t.Errorf("%s left: found %d", says, pid)
		}
	}
	left := &effort{soon, 1, descriptorsMost}
	pid, dir := p.among([]int{os.Getpid(), os.Getpid()}, inode, left)
	if pid != os.Getpid() {
		t.Fatalf("found %d", pid)
	}
	unix.Close(dir)
	if left.processes != 0 || left.descriptors == descriptorsMost {
		t.Errorf("%+v is left", left)
	}
}

// TestArgumentsThatDoNotComeAreNotWaitedFor reads from what does not answer, as a
// program can have its memory do.
func TestArgumentsThatDoNotComeAreNotWaitedFor(t *testing.T) {
	p := ownPrograms(t)
	folder := t.TempDir()
	path := filepath.Join(folder, "cmdline")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	dir, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	for range argumentReaders {
		if got := p.arguments(dir, time.Now().Add(time.Millisecond)); got != nil {
			t.Errorf("read %q", got)
		}
	}
	if len(p.readers) != argumentReaders {
		t.Fatalf("%d readers wait", len(p.readers))
	}
	if got := p.arguments(dir, time.Now().Add(time.Hour)); got != nil {
		t.Errorf("read %q", got)
	}
	client, _ := connection(t, "tcp", "127.0.0.1:0")
	if got := p.Connected(ends(client)); got == nil || got.PID != os.Getpid() || got.Exe == "" || got.Argv != nil {
		t.Errorf("found %+v while arguments cannot be read", got)
	}
	for range argumentReaders {
		if _, err := writer.Write(make([]byte, argumentBytes)); err != nil {
			t.Fatal(err)
		}
	}
	for range argumentReaders {
		p.readers <- struct{}{} // each is over
	}
}

// TestAnswersOfTheKernelAreReadWithCare gives it what it does not say.
func TestAnswersOfTheKernelAreReadWithCare(t *testing.T) {
	whole := socketQuestion{protocol: syscall.IPPROTO_TCP, family: unix.AF_INET}.message()
	for n := range len(whole) {
		if found, _ := diagnoses(whole[:n]); len(found) != 0 {
			t.Errorf("%d bytes: %+v", n, found)
		}
	}
	for _, link := range []string{"", "socket:[]", "socket:[x]", "socket:[4294967296]", "pipe:[1]", "/socket:[1"} {
		if got := socketInode(link); got != 0 {
			t.Errorf("%q is %d", link, got)
		}
	}
	if got := socketInode(socketLink(4294967295)); got != 4294967295 {
		t.Errorf("the last inode is %d", got)
	}
}
