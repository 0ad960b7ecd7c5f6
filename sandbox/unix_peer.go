package sandbox

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// A UnixPeer is the process that has connected to a Unix socket, as it was when it connected
// (SO_PEERCRED, and the network of the connection).
type UnixPeer struct {
	UID     uint32
	PID     int    // 0 where it cannot be seen from here
	Network uint64 // the kernel's number of its network
	Host    bool   // it is in the network of this process
}

// UnixPeerOf returns the process at the other end of c. On error, the fields that were found are set. Before Linux
// 5.14 the kernel does not name the network ([TellsNetworksApart]).
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
		p.UID, p.PID = who.Uid, int(who.Pid)
		if p.Network, err = NetworkOf(int(fd)); err != nil {
			return
		}
		var own uint64
		own, err = OwnNetwork()
		p.Host = err == nil && p.Network == own
	})
	return p, errors.Join(failed, err)
}

// NetworkOf returns the number that the kernel gives the network of a socket
// (SO_NETNS_COOKIE, Linux 5.14). A connection of a Unix socket is of the network that
// who connected was in.
func NetworkOf(fd int) (uint64, error) {
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, errors.New("this kernel does not tell networks apart; it takes Linux 5.14")
	}
	return n, err
}

// TellsNetworksApart returns an error where the kernel does not tell which network a
// socket is of, without which no door can be opened.
func TellsNetworksApart() error {
	_, err := OwnNetwork()
	return err
}

// OwnNetwork is the number of the network that this process is in.
func OwnNetwork() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return NetworkOf(fd)
}
