package proxy

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"unsafe"

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

// boundUnsent sets it.
func boundUnsent(fd int) {
	const notSentLowat = 25 // TCP_NOTSENT_LOWAT
	syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, notSentLowat, unsentMost)
}

// accept takes one connection off the queue of fd, without waiting.
func accept(fd int) (int, netip.AddrPort, error) {
	client, sa, err := syscall.Accept4(fd, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	noDelay(client)
	boundUnsent(client)
	return client, addrPort(sa), nil
}

// peerOf is what the kernel knows of the other end of fd.
func peerOf(listener string, fd int, from netip.AddrPort) sandbox.Peer {
	p := sandbox.Peer{Addr: from, Listener: listener}
	if from.IsValid() {
		return p
	}
	who, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil { // then it is nobody's
		return p
	}
	p.UID, p.HasUID = who.Uid, true
	p.Process = sandbox.ProcessOf(int(who.Pid), who.Uid)
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
