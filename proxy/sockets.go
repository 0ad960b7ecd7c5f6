package proxy

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"

	"github.com/egressd/egressd/sandbox"
)

func (s *Server) loopCount() int {
	if s.Loops > 0 {
		return s.Loops
	}
	return runtime.GOMAXPROCS(0) / 2
}

// leaveToLoops closes l where the loops' duplicates are all that is needed of it. The
// runtime watches every listener that is open in Go, and would wake a thread for each
// connection that arrives, to find nobody who waits for it. That of a unix socket stays:
// its file goes when it is closed.
func leaveToLoops(l net.Listener) {
	if tcp, ok := l.(*net.TCPListener); ok {
		tcp.Close()
	}
}

// noDelay sets TCP_NODELAY, which sends each write at once. Accepted connections inherit the option from their
// listener. The exceptions are connections that were waiting before it was set, and MPTCP before Linux 5.17.
// The option does nothing on a Unix socket.
func noDelay(fd int) { syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1) }

// unsentMost is how much the kernel queues for a client that does not read. Without this bound, the queue grows to
// tcp_wmem (4 MiB). A client on the same host reads no slower for it.
const unsentMost = 512 << 10

// peerOf is what the kernel knows of the other end of fd.
func peerOf(listener string, fd int, from netip.AddrPort) sandbox.Peer {
	p := sandbox.Peer{Addr: from, Listener: listener}
	if from.IsValid() {
		return p
	}
	uid, pid, err := userOf(fd)
	if err != nil { // then it is nobody's
		return p
	}
	p.UID, p.HasUID = uid, true
	p.Process = sandbox.ProcessOf(pid, uid)
	return p
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

// netConn makes a net.Conn of fd, which it closes either way.
func netConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "client")
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
