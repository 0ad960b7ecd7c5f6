package proxy

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/egressd/egressd/sandbox"
)

// unsentMost is how much the kernel queues for a client that does not read. Without this bound, the queue grows to
// tcp_wmem (4 MiB). A client on the same host reads no slower for it.
const unsentMost = 512 << 10

// peerOf notes what the kernel knows of the other end of a Unix socket.
func peerOf(c *net.UnixConn, p *sandbox.Peer) {
	raw, err := c.SyscallConn()
	if err != nil { // then it is nobody's
		return
	}
	raw.Control(func(fd uintptr) {
		uid, pid, err := userOf(int(fd))
		if err != nil {
			return
		}
		p.UID, p.HasUID = uid, true
		p.Process = sandbox.ProcessOf(pid, uid)
	})
}

// setOptions sets what connections inherit from their listener: keepalives, so that a client that has vanished is
// noticed, and a bound of what the kernel queues for a client.
func (in *listener) setOptions() {
	tcp, ok := in.Listener.(*net.TCPListener)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1)
		setInherited(int(fd))
	})
}

// originalOf asks how where a captured connection was going.
func originalOf(c net.Conn, how Original) (to netip.AddrPort, err error) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return to, errOriginal
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return to, err
	}
	failed := raw.Control(func(fd uintptr) { to, err = how(int(fd)) })
	return to, errors.Join(failed, err)
}

func addrPort(sa syscall.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// acceptNow accepts one connection of fd, if one waits.
func acceptNow(fd int) (net.Conn, error) {
	client, err := accept(fd)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(client), "client")
	defer f.Close()
	return net.FileConn(f)
}

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

// boundTo is the address that a listener has, or the zero AddrPort.
func boundTo(l net.Listener) netip.AddrPort {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := a.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// Descriptors that the server leaves to the rest of the process, and those of one connection. A tunnel has
// two, a connection whose upstream does not answer up to five, and a sandbox has at most half of the
// connections.
const (
	descriptorsLeft  = 64
	descriptorsOfOne = 3
	connectionsLeast = 4
)

// ConnectionsWithin returns how many connections fit into a process with so many descriptors, at most most.
// With more connections, one sandbox could use up the descriptors, and egressd could neither accept nor dial.
func ConnectionsWithin(most int, descriptors uint64) int {
	if descriptors > 1<<30 { // unlimited
		return most
	}
	return min(most, max(connectionsLeast, (int(descriptors)-descriptorsLeft)/descriptorsOfOne))
}
