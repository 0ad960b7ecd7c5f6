//go:build linux

package sandbox

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// A UnixPeer is the process that connected to a Unix socket, at the time of connect(2) (SO_PEERCRED,
// SO_NETNS_COOKIE).
type UnixPeer struct {
	UID     uint32
	HasUID  bool
	PID     int    // 0 where it cannot be seen from here
	Network uint64 // the kernel's number of its network
	Host    bool   // it is in the network of this process
}

// UnixPeerOf returns the process at the other end of c. On error it sets the fields that it found. It needs
// Linux 5.14 ([TellsNetworksApart]).
func UnixPeerOf(c *net.UnixConn) (p UnixPeer, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	failed := raw.Control(func(fd uintptr) {
		var who *unix.Ucred
		if who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		p.UID, p.HasUID, p.PID = who.Uid, true, int(who.Pid)
		if p.Network, err = NetworkOf(int(fd)); err != nil {
			return
		}
		var own uint64
		own, err = OwnNetwork()
		p.Host = err == nil && p.Network == own
	})
	return p, errors.Join(failed, err)
}

// NetworkOf returns the kernel's number of a socket's network namespace (SO_NETNS_COOKIE, Linux 5.14). An
// accepted Unix connection belongs to the namespace of the process that connected.
func NetworkOf(fd int) (uint64, error) {
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, errors.New("this kernel does not tell networks apart; it takes Linux 5.14")
	}
	return n, err
}

// TellsNetworksApart returns an error if the kernel cannot name the network of a socket. Networks cannot be
// attached then.
func TellsNetworksApart() error {
	_, err := OwnNetwork()
	return err
}

// OwnNetwork returns the number of this process's network namespace.
func OwnNetwork() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return NetworkOf(fd)
}
