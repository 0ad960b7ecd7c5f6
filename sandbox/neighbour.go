package sandbox

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// A Neighbour is who has connected to a Unix socket, as the kernel says: what held when it
// connected (SO_PEERCRED, and the network of the connection).
type Neighbour struct {
	UID       uint32
	PID       int  // 0 where it cannot be seen from here
	Elsewhere bool // it is in another network
}

// NeighbourOf returns who is at the other end of c. It is an error where the kernel does not
// tell, as before Linux 5.14 ([TellsNetworksApart]), or while there is no descriptor to ask with.
func NeighbourOf(c *net.UnixConn) (n Neighbour, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return n, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = err
			return
		}
		n.UID, n.PID = who.Uid, int(who.Pid)
		own, err := ownNetwork()
		if err != nil {
			failed = err
			return
		}
		network, err := networkOf(int(fd))
		failed, n.Elsewhere = err, network != own
	})
	return n, errors.Join(err, failed)
}
